"""Models: families as data, loading, and what a loaded model is."""

from sinkscope.models.families import DREAM, FAMILIES, LLADA, LLAMA, MMADA, SMDM, recognise
from sinkscope.models.family import Family, PublishedShape, SpecialTokens
from sinkscope.models.folders import BUNDLED, bundled_folder
from sinkscope.models.loading import identify, load
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.sink_token import SinkToken, add_sink_token

__all__ = [
    "BUNDLED",
    "DREAM",
    "FAMILIES",
    "LLADA",
    "LLAMA",
    "MMADA",
    "SMDM",
    "Family",
    "Model",
    "ModelCard",
    "PublishedShape",
    "SinkToken",
    "SpecialTokens",
    "add_sink_token",
    "bundled_folder",
    "identify",
    "load",
    "recognise",
]
