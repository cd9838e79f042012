"""The parameters of a network's sink, and its constant keys and values in each layer.

A sink token attends only to itself, so its hidden states do not depend on the text. They are computed once for each
call, separately from the text. Its key and value in each layer are put in front of those of the text (`Prefix`); no
canvas, cache, mask or loss has a row for it. The key is rotated to its position: 0 … n−1 in front, where the text
begins at n; or, at the end, after the last token of each row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import Prefix
from sinkscope.errors import CallError
from sinkscope.models.sink_token.variant import KEY, SinkToken


@dataclass(frozen=True, eq=False)
class _Rotated:
    """Prefixes of folded constants in front, with their inputs: they are stale when these have changed."""

    constants: tuple[Tensor, ...]
    state: tuple[Any, ...]
    prefixes: list[Prefix]


class SinkWeights(nn.Module):
    """The parameters of a network's sink, ``model.sink_token``.

    A token has an ``embedding`` [count, width]; a folded one has ``keys`` and ``values`` [layer, kv_head, count, dim],
    the keys before rotation; a learned logit has ``logits`` [layer, head].
    """

    def __init__(self, variant: SinkToken, config: Any) -> None:
        super().__init__()
        self.variant, self.std, self.hidden = variant, float(config.initializer_range), False
        layers, heads, kv_heads = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if variant.kind == "token" and variant.folded:
            shape = (layers, kv_heads, variant.count, dim)
            self.keys = nn.Parameter(torch.zeros(shape), requires_grad=False)
            if not variant.zero_value:
                self.values = nn.Parameter(torch.zeros(shape), requires_grad=False)
        elif variant.kind == "token":
            self.embedding = nn.Parameter(torch.empty(variant.count, config.hidden_size))
        elif variant.kind == "logit" and variant.learned:
            self.logits = nn.Parameter(torch.empty(layers, heads))
        self.layers, self.heads = layers, heads
        self.rotated: _Rotated | None = None
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Set the initial values, as those of an ordinary embedding."""
        from transformers import initialization

        for parameter, values in zip(self.parameters(), self.initial_values(), strict=False):
            if not parameter.is_meta:
                initialization.copy_(parameter, values.to(parameter))  # unless a checkpoint has filled it

    def initial_values(self) -> list[Tensor]:
        """Return the initial values of the learned parameters; none for a folded sink."""
        if self.variant.folded or not self.variant.learned or self.variant.kind == "gate":
            return []
        (parameter,) = self.parameters()
        generator = torch.Generator().manual_seed(self.variant.seed)
        return [torch.randn(parameter.shape, generator=generator, device="cpu", dtype=torch.float32) * self.std]

    @property
    def trained(self) -> bool:
        """Whether the parameters differ from their initial values, in whichever float type these were stored."""
        pairs = list(zip(self.parameters(), self.initial_values(), strict=False))
        types = (torch.float32, torch.bfloat16, torch.float16)
        return not any(
            torch.equal(mine.detach().cpu(), first.to(kind).to(mine.dtype)) for mine, first in pairs for kind in types
        )


def constant_keys(stack: Any) -> tuple[Tensor, Tensor | None]:
    """Return the keys before rotation and the values of the sink tokens, [layer, kv_head, count, dim] each; None for
    values of zero.
    """
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.folded:
        return sink.keys, None if variant.zero_value else sink.values
    hidden, keys, values = sink.embedding, [], []
    last = len(stack.layers) - 1
    for number, layer in enumerate(stack.layers):
        entering = layer.input_layernorm(hidden)
        split = (variant.count, -1, layer.self_attn.head_dim)
        keys.append(layer.self_attn.k_proj(entering).view(split).transpose(0, 1))
        if not variant.zero_value:
            value = layer.self_attn.v_proj(entering).view(split)
            values.append(value.transpose(0, 1))
            if number < last:  # it attends only to itself, so the output of attention is its own value
                repeated = value.repeat_interleave(layer.self_attn.num_key_value_groups, dim=1)
                hidden = hidden + layer.self_attn.o_proj(repeated.flatten(1))
        if number < last:
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return torch.stack(keys), None if variant.zero_value else torch.stack(values)


def rotate(keys: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate keys to positions.

    Args:
        keys: [layer, kv_head, count, dim].
        cosines, sines: of the positions, [1 or batch, count, dim].

    Returns:
        [layer, 1 or batch, kv_head, count, dim].
    """
    half = keys.shape[-1] // 2
    turned = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
    return (keys[:, None] * cosines[:, None] + turned[:, None] * sines[:, None]).to(keys.dtype)


def prefixes(stack: Any, first: Tensor | None) -> list[Prefix] | None:
    """Return the constant keys of every layer for one call; None where there are none, or while `hidden_sink` hides
    them.

    Args:
        stack: ``network.model``, which owns ``sink_token``.
        first: int64 [1 or batch], RoPE position of the first sink token of each row; None for a logit.
    """
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.kind == "gate" or sink.hidden:
        return None
    if variant.kind == "logit":
        zero = next(stack.parameters()).new_zeros(sink.layers, sink.heads)
        return [Prefix(logits=row[:, None]) for row in (sink.logits if variant.learned else zero)]
    assert first is not None
    if variant.folded and variant.position == "front" and not torch.compiler.is_compiling():
        return _kept(stack, first)
    return _rotated(stack, first)


def _kept(stack: Any, first: Tensor) -> list[Prefix]:
    """Return the prefixes of folded constants in front: the same list from call to call, until the constants change."""
    sink: SinkWeights = stack.sink_token
    constants = tuple(sink.parameters())
    versions = ((one.data_ptr(), one.dtype, None if one.is_inference() else one._version) for one in constants)
    state = (first.device, *versions)
    kept = sink.rotated
    if kept is None or kept.state != state or [*map(id, kept.constants)] != [*map(id, constants)]:
        with torch.inference_mode(False), torch.no_grad():  # a later call may compute gradients with the same tensors
            made = _rotated(stack, torch.zeros(1, dtype=torch.int64, device=first.device))
        sink.rotated = kept = _Rotated(constants, state, made)
    return kept.prefixes


def _rotated(stack: Any, first: Tensor) -> list[Prefix]:
    """Return the prefixes of every layer, their keys rotated to the positions from ``first`` on."""
    variant: SinkToken = stack.sink_token.variant
    with torch.autocast(first.device.type, enabled=False):  # casting costs more than it saves for so few rows
        keys, values = constant_keys(stack)
    positions = first[:, None] + torch.arange(variant.count, device=first.device)
    rotated = rotate(keys, *stack.rotary_emb(keys, positions))
    if values is None:
        return [Prefix(keys=key) for key in rotated]
    return [Prefix(keys=key, values=value) for key, value in zip(rotated, values, strict=True)]


@contextmanager
def hidden_sink(network: Any) -> Iterator[None]:
    """Take the sink of a network away while the body runs: the text keeps its positions and attends only to itself.

    Raises:
        CallError: the network has no sink that can be hidden.
    """
    sink = network.model.sink_token if getattr(network.config, KEY, None) is not None else None
    if sink is None or sink.variant.kind == "gate":
        found = "none" if sink is None else repr(sink.variant.name)
        raise CallError(f"expected a network with a sink token or a learned logit to hide, found {found}")
    before, sink.hidden = sink.hidden, True
    try:
        yield
    finally:
        sink.hidden = before
