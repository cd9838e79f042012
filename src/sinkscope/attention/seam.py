"""The attention function that transformers calls: hide keys before the softmax, watch columns after it, prepend.

With none of the three in force it is transformers' own ``sdpa_attention_forward``, bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import compiled
from sinkscope.attention.call import Call
from sinkscope.attention.own_keys import attend_behind
from sinkscope.attention.paths import attend
from sinkscope.attention.session import Session
from sinkscope.attention.stacks import Stack
from sinkscope.attention.sweep import Prefix
from sinkscope.errors import AttentionError

NAME = "sinkscope"
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
    """Attention of one layer: query [batch, head, query, dim] → output [batch, query, head, dim].

    Args:
        sinkscope_call: the step that is being watched.
        sinkscope_prefixes: constant keys of the network's own, one entry a layer.

    Raises:
        AttentionError: an argument this function does not model, or dropout while something watches or hides.
    """
    _refuse(others)
    if sinkscope_call is not None and torch.compiler.is_compiling():
        if sinkscope_prefixes is not None:
            raise AttentionError(
                "a network with a sink token or logit of its own is not watched in compiled layers; leave torch.compile out"
            )
        return compiled.attention(query, key, value, attention_mask, dropout, scaling, is_causal), None
    running, prefixes = sinkscope_call, sinkscope_prefixes
    return attention_of(module, query, key, value, attention_mask, dropout, scaling, is_causal, running, prefixes, **others), None


def attention_of(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    running: Call | None,
    prefixes: Sequence[Prefix] | None = None,
    **others: Any,
) -> Tensor:
    """The same for the call of a stack that is running, None where nobody watches; output [batch, query, head, dim]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = None if prefixes is None else prefixes[module.layer_idx]  # type: ignore[index]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    call = None if running is None else running.layer(module, query, key, value)
    if call is not None and running is not None:
        call = replace(call, own=own)
        assert call.membership is not None
        sweep = partial(attend, query, key, groups=call.membership, scale=scaling, mask=attention_mask, causal=causal)
        sweep = partial(sweep, workspace=running.workspace)
        answers = running.answers(call, sweep)
        if answers.in_force:
            if dropout:
                raise AttentionError(f"expected no attention dropout while watching or hiding, found {dropout}; call network.eval()")
            output, columns = sweep(value, hidden=answers.hidden or None, prefix=answers.prefix)
            running.show(call, columns)
            return output.transpose(1, 2)
    if own is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend_behind(query, key, value, own, mask=attention_mask, causal=causal, scale=scale, dropout=dropout).transpose(1, 2)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )[0]


def _refuse(others: dict[str, Any]) -> None:
    found = [name for name in REFUSED if others.get(name) is not None]
    if found:
        raise AttentionError(f"attention arguments {', '.join(found)} are not modelled by sinkscope; use another attention implementation")


def register_seam() -> None:
    """Tells transformers of the attention function and its mask function."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # without one, padding is lost without a word


@dataclass
class _Held:
    """A configuration that is turned to the seam: how it was set before, and for how many sessions."""

    config: Any
    before: Any
    sessions: int


_held: dict[int, _Held] = {}  # models may share a configuration; the last session gives it back


def use_seam(network: nn.Module, stacks: list[Stack]) -> list[Any]:
    """Registers the function and its mask function, and sets both on one network.

    Returns:
        Every configuration that was changed, for `leave_seam`.

    Raises:
        AttentionError: the model does not go through transformers' attention interface.
    """
    register_seam()
    found: dict[int, Any] = {id(module.config): module.config for module in network.modules() if hasattr(module, "config")}
    configs = [config for config in found.values() if hasattr(config, "_attn_implementation_internal")]
    for config in configs:
        held = _held.setdefault(id(config), _Held(config, config._attn_implementation_internal, 0))
        held.sessions += 1
    try:
        network.set_attn_implementation(NAME)  # type: ignore[operator]
        for stack in stacks:
            for attention, (path, _) in stack.layers.items():
                set_to = getattr(getattr(attention, "config", None), "_attn_implementation", None)
                if set_to != NAME:
                    raise AttentionError(
                        f"expected {path} of {type(network).__name__} to take its attention from transformers' interface, "
                        f"found {set_to!r}; this model cannot be watched"
                    )
    except BaseException:
        leave_seam(configs)
        raise
    return configs


def leave_seam(configs: list[Any]) -> None:
    """Gives configurations back as they were, those that another session still uses left alone."""
    for config in configs:
        held = _held[id(config)]
        held.sessions -= 1
        if not held.sessions:
            config._attn_implementation_internal = held.before
            del _held[id(config)]


def check_generate(network: nn.Module, session: Session) -> Callable[..., Any]:
    """The network's own ``generate`` as one generation, refusing what reorders rows or runs other networks."""
    generate: Any = network.generate

    def checked(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None) or network.generation_config
        names = ("num_beams", "assistant_model", "prompt_lookup_num_tokens")
        found = [name for name in names if kwargs.get(name, getattr(config, name, None)) not in (None, 1)]
        if found:
            raise AttentionError(f"generate with {', '.join(found)} is not modelled; leave it out while something watches or hides")
        with session.foreign_generation():
            return generate(*args, **kwargs)

    return checked
