"""The dense counterpart of a recording: the same model in eager attention, whole maps kept, under the same generate."""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from sinkscope.attention.stacks import find_stacks


@dataclass
class Layer:
    """What one attention module did, call by call: maps [batch, head, query, key], norms of fresh tokens."""

    maps: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


DENSE = "dense-with-boolean-masks"
"""Five lines of attention; transformers' own eager masks break in DiffusionGemma's generate when there is padding."""


def dense_attention(module, query, key, value, attention_mask, scaling=None, is_causal=None, **others):
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (key, value))
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    visible = attention_mask if attention_mask is not None else visible.tril() if causal else visible
    weights = torch.softmax((query @ key.mT * scaling).masked_fill(~visible, -torch.inf), dim=-1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2), weights


class EagerRun:
    """Layers of a copy of a network that runs in eager attention.

    Args:
        sources: hangs hooks into one attention module that keep the norms of its fresh keys and values in a `Layer`.
    """

    def __init__(self, network, sources, implementation="eager"):
        AttentionInterface.register(DENSE, dense_attention)
        AttentionMaskInterface.register(DENSE, sdpa_mask)
        self.network = copy.deepcopy(network)
        self.network.set_attn_implementation(implementation)
        self.layers = {}
        for stack in find_stacks(self.network):
            for attention, (path, _) in stack.layers.items():
                layer = self.layers[path] = Layer()
                attention.register_forward_hook(
                    lambda module, args, output, layer=layer: layer.maps.append(output[1].detach())
                )
                stack.blocks[attention].register_forward_pre_hook(
                    lambda module, args, layer=layer: layer.hidden.append(args[0].norm(dim=-1).detach())
                )
                sources(attention, layer)


def columns(maps: list[Tensor], row: int, padding: int, width: int, whole: bool) -> Tensor:
    """Running column sums [head, key] of one row over several calls; ``whole`` takes the last call alone.

    Key k of a map with K keys, made when there were n tokens, stands at n − K + k.
    """
    sums, seen = torch.zeros(maps[0].shape[1], width), 0
    for each in maps[-1:] if whole else maps:
        queries, keys = each.shape[-2:]
        seen = queries if whole else seen + queries
        real = torch.arange(seen - queries, seen) >= padding
        sums[:, seen - keys : seen] += each[row][:, real].sum(dim=1)
    return sums[:, padding:]


def so_far(pieces: list[Tensor], row: int, padding: int, whole: bool) -> Tensor:
    """Norms of all tokens so far, those of one row."""
    return torch.cat(pieces[-1:] if whole else pieces, dim=-1)[row][..., padding:]
