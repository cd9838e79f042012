"""What the sinks of a network are made of, and the constant keys they come to.

A sink token sees only itself, so its row through the network does not depend on the text: it is computed once a call,
beside the text and not in it. Its key and value in each layer go in front of the text's own (`Prefix`), and no canvas,
cache, mask or loss ever holds a row of it. The key is rotated to its position: front 0 … n−1, text n …; at the end behind
the last token of each row.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import Prefix
from sinkscope.models.sink_token.variant import SinkToken


class SinkWeights(nn.Module):
    """The parameters of a network's sink, ``model.sink_token``; what they are depends on the variant.

    ``embedding`` [count, width] of a token; folded ``keys`` and ``values`` [layer, kv_head, count, dim], the keys before
    rotation; ``logits`` [layer, head] of a learned logit.
    """

    def __init__(self, variant: SinkToken, config: Any) -> None:
        super().__init__()
        self.variant, self.std = variant, float(config.initializer_range)
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
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Initial values, as an ordinary embedding has them."""
        from transformers import initialization

        for parameter, values in zip(self.parameters(), self.initial_values(), strict=False):
            if not parameter.is_meta:
                initialization.copy_(parameter, values.to(parameter))  # leaves alone what a checkpoint has filled

    def initial_values(self) -> list[Tensor]:
        """What the learned parameters are before training, reproducibly; nothing for folded ones."""
        if self.variant.folded or not self.variant.learned or self.variant.kind == "gate":
            return []
        (parameter,) = self.parameters()
        generator = torch.Generator().manual_seed(self.variant.seed)
        return [torch.randn(parameter.shape, generator=generator) * self.std]

    @property
    def trained(self) -> bool:
        """Whether the parameters have left their initial values, in whatever type these were stored."""
        pairs = list(zip(self.parameters(), self.initial_values(), strict=False))
        types = (torch.float32, torch.bfloat16, torch.float16)
        return not any(torch.equal(mine.detach().cpu(), first.to(kind).to(mine.dtype)) for mine, first in pairs for kind in types)


def constant_keys(stack: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Key before rotation and value of the sink tokens in each layer: [kv_head, count, dim] each; no values where they are zero."""
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.folded:
        return list(sink.keys), [] if variant.zero_value else list(sink.values)
    hidden, keys, values = sink.embedding, [], []
    last = len(stack.layers) - 1
    for number, layer in enumerate(stack.layers):
        entering = layer.input_layernorm(hidden)
        split = (variant.count, -1, layer.self_attn.head_dim)
        keys.append(layer.self_attn.k_proj(entering).view(split).transpose(0, 1))
        if not variant.zero_value:
            value = layer.self_attn.v_proj(entering).view(split)
            values.append(value.transpose(0, 1))
            if number < last:  # its attention is on itself alone: the output is its own value
                repeated = value.repeat_interleave(layer.self_attn.num_key_value_groups, dim=1)
                hidden = hidden + layer.self_attn.o_proj(repeated.flatten(1))
        if number < last:
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return keys, values


def rotate(stack: Any, key: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Keys [kv_head, count, dim] at their positions: cosines and sines [1 or batch, count, dim] → [1 or batch, kv_head, count, dim]."""
    half = key.shape[-1] // 2
    turned = torch.cat([-key[..., half:], key[..., :half]], dim=-1)
    return (key * cosines[:, None] + turned * sines[:, None]).to(key.dtype)


def prefixes(stack: Any, first: Tensor | None) -> list[Prefix] | None:
    """The constant keys of every layer for one call.

    Args:
        stack: ``network.model``, which owns ``sink_token``.
        first: int64 [1 or batch], RoPE position of the first sink token of each row; None for a logit.
    """
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.kind == "gate":
        return None
    if variant.kind == "logit":
        zero = next(stack.parameters()).new_zeros(sink.layers, sink.heads)
        return [Prefix(logits=row[:, None]) for row in (sink.logits if variant.learned else zero)]
    assert first is not None
    keys, values = constant_keys(stack)
    positions = first[:, None] + torch.arange(variant.count, device=first.device)
    cosines, sines = stack.rotary_emb(keys[0], positions)
    rotated = [rotate(stack, key, cosines, sines) for key in keys]
    if variant.zero_value:
        return [Prefix(keys=key) for key in rotated]
    return [Prefix(keys=key, values=value) for key, value in zip(rotated, values, strict=True)]
