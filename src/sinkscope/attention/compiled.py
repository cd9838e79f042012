"""Watching layers that run under ``torch.compile``: what a graph cannot hold goes through two operators.

A compiled layer knows neither the running step nor its own name, so that one graph serves all layers and all steps. The
operators find both from the order in which the layers of a stack run.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.errors import AttentionError

if TYPE_CHECKING:
    from sinkscope.attention.call import Call

# Replaying a CUDA graph would run neither operator: layers compiled with mode="reduce-overhead" are cut around them.
_TAGS: Any = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}

_running: "list[Call]" = []  # innermost last: a stack may be called within another's layers


def call_begins(call: "Call") -> None:
    """A stack is called."""
    _running.append(call)


def call_ends(call: "Call") -> None:
    """It has returned or raised; so have those within it."""
    if call in _running:
        del _running[_running.index(call) :]


@torch.library.custom_op("sinkscope::attention", mutates_args=(), **_TAGS)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
) -> Tensor:
    """Attention of the next layer, [batch, query, head, dim]."""
    from sinkscope.attention.seam import attention_of

    if not _running:
        raise AttentionError("expected a compiled layer to run within its stack; call the model, not the layer, while something watches")
    call = _running[-1]
    return attention_of(call.next_module(), query, key, value, attention_mask, dropout, scaling, is_causal, call).contiguous()


@attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


@torch.library.custom_op("sinkscope::entering", mutates_args=(), **_TAGS)
def entering(hidden_states: Tensor) -> Tensor:
    """Notes what enters the next layer; gives it on, as an operator without a result would be left out of the graph."""
    if _running:
        _running[-1].note_entering(hidden_states)
    return hidden_states.clone()


@entering.register_fake
def _(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states)
