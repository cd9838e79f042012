"""Models: families as data, loading, and what a loaded model is."""

from sinkscope.models.families import DREAM, FAMILIES, LLADA, LLAMA, MMADA, recognise
from sinkscope.models.family import Family, PublishedShape, SpecialTokens
from sinkscope.models.loading import BUNDLED, bundled_folder, load
from sinkscope.models.model import Model, ModelCard

__all__ = [
    "BUNDLED",
    "DREAM",
    "FAMILIES",
    "LLADA",
    "LLAMA",
    "MMADA",
    "Family",
    "Model",
    "ModelCard",
    "PublishedShape",
    "SpecialTokens",
    "bundled_folder",
    "load",
    "recognise",
]
