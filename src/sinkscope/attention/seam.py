"""The attention function that transformers calls: hide keys before the softmax, watch columns after it, prepend.

With none of the three in force it is transformers' own ``sdpa_attention_forward``, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from sinkscope.attention.own_keys import attend_behind
from sinkscope.attention.session import Call, Stack
from sinkscope.attention.sweep import Prefix, attend
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
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    _refuse(others)
    own = None if sinkscope_prefixes is None else sinkscope_prefixes[module.layer_idx]  # type: ignore[index]
    call = None if sinkscope_call is None else sinkscope_call.layer(module, query, key, value)
    if call is not None and sinkscope_call is not None:
        hidden, prefix = sinkscope_call.hidden(call), _only(sinkscope_call.prefix(call), own)
        if sinkscope_call.watched or hidden is not None or prefix is not None:
            if dropout:
                raise AttentionError(f"expected no attention dropout while watching or hiding, found {dropout}; call network.eval()")
            causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
            causal = bool(causal) and attention_mask is None and query.shape[2] > 1
            assert call.membership is not None
            output, columns = attend(
                query, key, value, groups=call.membership, scale=scaling, mask=attention_mask, causal=causal, hidden=hidden, prefix=prefix
            )
            sinkscope_call.show(call, columns)
            return output.transpose(1, 2), None
    if own is not None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        output = attend_behind(query, key, value, own, mask=attention_mask, causal=causal, scale=scale, dropout=dropout)
        return output.transpose(1, 2), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **others
    )


def _only(prepended: Prefix | None, own: Prefix | None) -> Prefix | None:
    if prepended is not None and own is not None:
        raise AttentionError("expected one prefix, found a prepender on a network that has a sink of its own; take one of them away")
    return own if prepended is None else prepended


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


def use_seam(network: nn.Module, stacks: list[Stack]) -> list[tuple[Any, Any]]:
    """Registers the function and its mask function, and sets both on one network.

    Returns:
        (config, implementation before) of every configuration that was changed.

    Raises:
        AttentionError: the model does not go through transformers' attention interface.
    """
    register_seam()
    configs: dict[int, Any] = {id(module.config): module.config for module in network.modules() if hasattr(module, "config")}
    before = [
        (config, config._attn_implementation_internal) for config in configs.values() if hasattr(config, "_attn_implementation_internal")
    ]
    try:
        network.set_attn_implementation(NAME)  # type: ignore[operator]
        for stack in stacks:
            for attention, (path, _) in stack.layers.items():
                found = getattr(getattr(attention, "config", None), "_attn_implementation", None)
                if found != NAME:
                    raise AttentionError(
                        f"expected {path} of {type(network).__name__} to take its attention from transformers' interface, "
                        f"found {found!r}; this model cannot be watched"
                    )
    except BaseException:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        raise
    return before


def check_generate(network: nn.Module) -> Callable[..., Any]:
    """The network's own ``generate``, refusing what reorders rows or runs other networks."""
    generate: Any = network.generate

    def checked(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None) or network.generation_config
        names = ("num_beams", "assistant_model", "prompt_lookup_num_tokens")
        found = [name for name in names if kwargs.get(name, getattr(config, name, None)) not in (None, 1)]
        if found:
            raise AttentionError(f"generate with {', '.join(found)} is not modelled; leave it out while something watches or hides")
        return generate(*args, **kwargs)

    return checked
