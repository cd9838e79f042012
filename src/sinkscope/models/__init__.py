"""Models: families as data, loading, and what a loaded model is."""

from sinkscope.models.family import LLADA, LLAMA, Family, recognise
from sinkscope.models.loading import BUNDLED, bundled_folder, load
from sinkscope.models.model import Model, ModelCard

__all__ = ["BUNDLED", "LLADA", "LLAMA", "Family", "Model", "ModelCard", "bundled_folder", "load", "recognise"]
