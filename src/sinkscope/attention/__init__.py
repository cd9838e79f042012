"""Attention with column sums, and the interface through which a model uses it."""

from sinkscope.attention.dispatch import attend
from sinkscope.attention.foreign_network import foreign
from sinkscope.attention.hooks import subscribed
from sinkscope.attention.interface import NAME, register_interface
from sinkscope.attention.records import (
    AttentionInputs,
    Columns,
    GenerationStart,
    Hidden,
    LayerCall,
    Prefix,
    StepContext,
    StepResult,
)
from sinkscope.attention.session import Session, current_session
from sinkscope.attention.stacks import upload
from sinkscope.attention.subscribers import Hider, Prepender, Subscriber, Watcher

__all__ = [
    "NAME",
    "AttentionInputs",
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
    "register_interface",
    "subscribed",
    "upload",
]
