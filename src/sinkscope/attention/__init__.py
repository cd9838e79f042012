"""Attention with column sums, and the seam through which a model uses it."""

from sinkscope.attention.foreign_network import foreign
from sinkscope.attention.hidden import Hidden
from sinkscope.attention.paths import attend
from sinkscope.attention.records import GenerationStart, LayerCall, StepContext, StepResult
from sinkscope.attention.seam import NAME, register_seam
from sinkscope.attention.session import Session, current_session, subscribed
from sinkscope.attention.subscribers import Hider, Prepender, Subscriber, Watcher
from sinkscope.attention.sweep import Columns, Prefix
from sinkscope.attention.uploads import upload

__all__ = [
    "NAME",
    "Columns",
    "GenerationStart",
    "Hidden",
    "Hider",
    "LayerCall",
    "Prefix",
    "Prepender",
    "Session",
    "StepContext",
    "StepResult",
    "Subscriber",
    "Watcher",
    "attend",
    "current_session",
    "foreign",
    "register_seam",
    "subscribed",
    "upload",
]
