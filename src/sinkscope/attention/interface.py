"""The attention function that transformers calls. It hides keys before the softmax, watches columns after it, and
prepends constant keys.

Without any of the three, its result is that of transformers' ``sdpa_attention_forward``, bit for bit.

Under ``torch.compile`` one graph serves all layers and all steps, so it can hold neither the running call nor the name
of the layer. Two custom operators find both from the order in which the layers of a stack run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.call import Call
from sinkscope.attention.constant_keys import attend_behind
from sinkscope.attention.records import AttentionInputs, Prefix
from sinkscope.attention.stacks import Stack
from sinkscope.errors import AttentionError

NAME = "sinkscope"
MASKED = "sinkscope_masked"
"""The same for networks without sdpa attention, whose modules do not say whether they are causal: every call has a
whole mask.
"""
REFUSED = ("softcap", "s_aux", "position_bias", "cache")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sinkscope_call: Call | None = None,
    sinkscope_prefixes: Sequence[Prefix] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one layer: query [batch, head, query, dim] → output [batch, query, head, dim].

    Args:
        sinkscope_call: the running call of the stack; None without subscribers.
        sinkscope_prefixes: constant keys of the network's own, one entry a layer.

    Raises:
        AttentionError: an argument this function does not model, or dropout while something watches or hides.
    """
    for name in REFUSED:
        if others.get(name) is not None:
            raise AttentionError(
                f"{name} is not modelled by sinkscope; {type(module).__name__} cannot be recorded or changed"
            )
    if sinkscope_call is not None and torch.compiler.is_compiling():
        if sinkscope_prefixes is not None:
            raise AttentionError(
                "a network with a sink token or logit of its own is not watched in compiled layers; leave "
                "torch.compile out"
            )
        return compiled_attention(query, key, value, attention_mask, dropout, scaling, is_causal), None
    given = (query, key, value, attention_mask, dropout, scaling, is_causal)
    return _attention(module, *given, sinkscope_call, sinkscope_prefixes, **others), None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    running: Call | None,
    prefixes: Sequence[Prefix] | None = None,
    **others: Any,
) -> Tensor:
    """Compute the attention of one layer outside of a graph, output [batch, query, head, dim]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = None if prefixes is None else prefixes[module.layer_idx]  # type: ignore[index]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and mask is None and query.shape[2] > 1
    scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    layer = None if running is None else running.layer(module, query, key, value, own)
    if layer is not None and running is not None:
        assert layer.membership is not None
        output = running.attend(
            layer, AttentionInputs(query, key, value, layer.membership, scale, mask, causal), dropout
        )
        if output is not None:
            return output.transpose(1, 2)
    if own is not None:
        output = attend_behind(query, key, value, own, mask=mask, causal=causal, scale=scale, dropout=dropout)
        return output.transpose(1, 2)
    return sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )[0]


# Compiled layers

# Replaying a CUDA graph would run neither operator: layers compiled with mode="reduce-overhead" are cut around them.
_TAGS: Any = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}

_running: list[Call] = []  # innermost last, because a stack may be called within the layers of another


def call_begins(call: Call) -> None:
    """Note that a stack is called, so that the operators in its compiled layers use this call."""
    _running.append(call)


def running_call(module: nn.Module) -> Call | None:
    """Return the innermost running call of the stack that an attention module belongs to."""
    return next((call for call in reversed(_running) if call.owns(module)), None)


def call_ends(call: Call) -> None:
    """Note that a stack has returned or raised, with all stacks called within it."""
    if call in _running:
        del _running[_running.index(call) :]


@torch.library.custom_op("sinkscope::attention", mutates_args=(), **_TAGS)
def compiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
) -> Tensor:
    """Compute the attention of the next layer, [batch, query, head, dim]."""
    call = _running[-1]
    return _attention(
        call.next_module(), query, key, value, attention_mask, dropout, scaling, is_causal, call
    ).contiguous()


@compiled_attention.register_fake
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
    """Note the input of the next layer, and return it, because the compiler removes an operator without a result."""
    if _running:
        _running[-1].note_entering(hidden_states)
    return hidden_states.clone()


@entering.register_fake
def _(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states)


# Registration


def register_interface() -> None:
    """Register the attention function and its mask function with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
        return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})

    # Without a mask function, padding would silently be ignored.
    for name, mask in ((NAME, sdpa_mask), (MASKED, whole_mask)):
        AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, mask)


@dataclass
class _Held:
    """A configuration that uses sinkscope's attention: its earlier setting, and the number of sessions that use it."""

    config: Any
    before: Any
    sessions: int


_held: dict[int, _Held] = {}  # models may share a configuration; the last session restores it


def use_interface(network: nn.Module, stacks: list[Stack]) -> list[Any]:
    """Set the attention implementation of a network to `attention_forward`.

    Returns:
        Every configuration that was changed, for `leave_interface`.

    Raises:
        AttentionError: the model does not go through transformers' attention interface, or is a module around one that
            does.
    """
    if not hasattr(network, "set_attn_implementation"):
        inner = next((path for path, one in network.named_modules() if hasattr(one, "set_attn_implementation")), None)
        advice = "open it inside foreign()" if inner is None else f"pass its {inner}"
        raise AttentionError(f"expected a transformers network itself, found {type(network).__name__}; {advice}")
    register_interface()
    found: dict[int, Any] = {
        id(module.config): module.config for module in network.modules() if hasattr(module, "config")
    }
    configs = [config for config in found.values() if hasattr(config, "_attn_implementation_internal")]
    for config in configs:
        held = _held.setdefault(id(config), _Held(config, config._attn_implementation_internal, 0))
        held.sessions += 1
    name = NAME if all(getattr(module, "_supports_sdpa", True) for module in network.modules()) else MASKED
    try:
        network.set_attn_implementation(name)  # type: ignore[operator]
        for stack in stacks:
            for attention, (path, _) in stack.layers.items():
                set_to = getattr(getattr(attention, "config", None), "_attn_implementation", None)
                if set_to != name:
                    raise AttentionError(
                        f"expected {path} of {type(network).__name__} to take its attention from transformers' "
                        "interface, "
                        f"found {set_to!r}; this model cannot be watched"
                    )
    except BaseException:
        leave_interface(configs)
        raise
    return configs


def leave_interface(configs: list[Any]) -> None:
    """Restore configurations, except those that another session still uses."""
    for config in configs:
        held = _held[id(config)]
        held.sessions -= 1
        if not held.sessions:
            config._attn_implementation_internal = held.before
            del _held[id(config)]
