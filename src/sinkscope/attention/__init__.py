"""Attention with column sums, and the interface through which a model uses it.

A *column sum* is the attention that one key receives from all queries together, or from one *query group*, in queries'
worth. A *subscriber* *watches* the columns of a layer, *hides* keys from its queries, or *prepends* constant keys. A
*session* holds the subscribers of one network; a *step* is one call of a *stack*, the module that owns the layers.
"""

from sinkscope.attention.dispatch import attend, without_autocast
from sinkscope.attention.foreign_network import foreign
from sinkscope.attention.hooks import NAME, generating_in, is_generating, register_interface, subscribed
from sinkscope.attention.projections import KeyNorms, OutputProjections, norms_of, output_norms, output_projection
from sinkscope.attention.records import (
    AttentionInputs,
    CallPart,
    Columns,
    GenerationStart,
    Hidden,
    Hider,
    LayerCall,
    Prefix,
    Prepender,
    StepContext,
    StepResult,
    Subscriber,
    Watcher,
    upload,
)
from sinkscope.attention.scores import mask_for
from sinkscope.attention.session import Session, current_session
from sinkscope.attention.stacks import query_heads

__all__ = [
    "NAME",
    "AttentionInputs",
    "CallPart",
    "Columns",
    "GenerationStart",
    "Hidden",
    "Hider",
    "KeyNorms",
    "LayerCall",
    "OutputProjections",
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
    "generating_in",
    "is_generating",
    "mask_for",
    "norms_of",
    "output_norms",
    "output_projection",
    "query_heads",
    "register_interface",
    "subscribed",
    "upload",
    "without_autocast",
]
