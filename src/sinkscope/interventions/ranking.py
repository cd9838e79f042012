"""Ordering keys by how much attention they receive, on the device, for every row and head at once."""

from typing import Literal

import torch
from torch import Tensor

Scope = Literal["head", "kv_head", "layer"]
FEW = 6
"""Up to this many ranks, repeated arg-max is quicker than sorting (ten times quicker for one rank)."""


def excess_of(columns: Tensor, real: Tensor) -> Tensor:
    """Return c_j − mean over k ≠ j of c_k (paper 1, Eq. 3), [batch, head, key]; ``real`` [batch, key] is no padding."""
    real = real[:, None]
    total = (columns * real).sum(-1, keepdim=True)
    return columns - (total - columns) / (real.sum(-1, keepdim=True) - 1).clamp(min=1)


def rank_of(values: Tensor, candidates: Tensor, most: int | None = None) -> Tensor:
    """Return the rank of every key in its head, int64 [batch, head, key]: 0 the largest, ties to the lower position;
    no ``candidates`` last. With ``most``, ranks from there on may be any.
    """
    left = values.masked_fill(~candidates, -torch.inf)
    if most is not None and most <= FEW:
        ranks = torch.full(left.shape, left.shape[-1] + most, dtype=torch.int64, device=left.device)
        for rank in range(most):
            value, place = left.max(dim=-1, keepdim=True)
            ranks.scatter_(-1, place, ranks.gather(-1, place).masked_fill(value > -torch.inf, rank))
            left.scatter_(-1, place, -torch.inf)
        return ranks
    order = left.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def pool(values: Tensor, scope: Scope, kv_heads: int) -> Tensor:
    """Return the mean over the heads that share a ranking: [batch, head, key] → [batch, head or kv_head or 1, key]."""
    groups = {"head": values.shape[1], "kv_head": kv_heads, "layer": 1}[scope]
    return values if groups == values.shape[1] else values.unflatten(1, (groups, -1)).mean(2)


def spread(chosen: Tensor, heads: int) -> Tensor:
    """Repeat what a group chose for each of its heads: [batch, group, key] → [batch, 1 or head, key]."""
    return chosen if chosen.shape[1] in (1, heads) else chosen.repeat_interleave(heads // chosen.shape[1], dim=1)
