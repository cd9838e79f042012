"""Models: families as data, loading, and what a loaded model is."""

from sinkscope.models.family import LLADA, LLAMA, SMDM, Family, recognise
from sinkscope.models.loading import BUNDLED, bundled_folder, load
from sinkscope.models.model import Model, ModelCard
from sinkscope.models.sink_token import SinkToken, add_sink_token

__all__ = [
    "BUNDLED",
    "LLADA",
    "LLAMA",
    "SMDM",
    "Family",
    "Model",
    "ModelCard",
    "SinkToken",
    "add_sink_token",
    "bundled_folder",
    "load",
    "recognise",
]
