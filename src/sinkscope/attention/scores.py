"""The scores of a block of queries, with masks, constant keys in front and hidden keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.records import AttentionInputs, Hidden, visible

LEAST_KEPT = 1e-6  # below this share, the remaining weights of a query have too few digits to be scaled up

Bias = tuple[Tensor | None, Tensor | None]
"""The bias on scores, −∞ where a key is not visible; and which queries see nothing, None where all see something."""


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for products that must keep float32's digits: float64 where the program lets this CPU round
    the factors of float32 products (``torch.set_float32_matmul_precision``). A GPU follows the setting.
    """
    if device.type != "cpu":
        return torch.float32
    allowed = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)
    if allowed is None:  # before torch 2.9
        allowed = torch.get_float32_matmul_precision()
    return torch.float64 if allowed not in ("none", "ieee", "highest") and _rounds(allowed) else torch.float32


@cache
def _rounds(allowed: str) -> bool:
    """Return whether this CPU rounds factors where the program allows it, found on a small product."""
    left = torch.full((2, 512, 64), 1 + 2**-12, device="cpu", dtype=torch.float32)
    right = torch.ones(2, 64, 512, device="cpu", dtype=torch.float32)
    return bool((torch.bmm(left, right) < 64 * (1 + 2**-13)).any())


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix product of float32, computed in a dtype of `product_dtype`."""
    return left @ right if dtype == torch.float32 else (left.to(dtype) @ right.to(dtype)).float()


class KeptBias:
    """The last mask with its bias, which the layers of a stack share."""

    def __init__(self) -> None:
        self._bias: tuple[Tensor, int, bool, Bias] | None = None

    def bias(self, mask: Tensor, alone: bool) -> Bias:
        """Return `bias_of` a mask; it is computed again only for another mask."""
        if mask.is_inference():  # an inference tensor keeps no count of its changes
            return bias_of(mask, alone)
        held = self._bias
        if held is None or held[0] is not mask or held[1:3] != (mask._version, alone):
            self._bias = held = (mask, mask._version, alone, bias_of(mask, alone))
        return held[3]


def bias_of(mask: Tensor, alone: bool) -> Bias:
    """Return the bias that a mask adds to the scores, and which queries see nothing.

    Queries that see nothing get 0 for all keys, because softmax (and its gradient) would give NaN; their weights are
    set to 0 afterwards, which is sdpa's convention. ``alone``: no constant keys, which every query sees, are in front.
    """
    seen = visible(mask)
    bias = torch.zeros(mask.shape, device=mask.device, dtype=torch.float32) if mask.dtype == torch.bool else mask
    bias = bias.float().masked_fill(~seen, -torch.inf)  # adding −∞ is ten times as fast as filling it in
    blind = ~seen.any(dim=-1, keepdim=True)
    if not alone or not (blind.is_cuda or bool(blind.any())):  # reading a GPU would wait
        return bias, None
    return bias.masked_fill(blind, 0.0), blind


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some query heads, their keys [batch · kv_head, dim, key] and values [batch · kv_head, key, value_dim]."""

    heads: slice
    keys: Tensor
    values: Tensor


class Scores:
    """The scores of one call, float32, for some heads and a block of queries at a time."""

    def __init__(self, inputs: AttentionInputs, kept_bias: KeptBias | None) -> None:
        self.dtype = product_dtype(inputs.query.device)
        self.front = Front.of(inputs, self.dtype)
        self._inputs = inputs
        # Scores rounded to bfloat16 before the softmax would be off by a hundredth and more.
        self._query = inputs.query.to(self.dtype)
        self._keys = inputs.key.to(self.dtype).transpose(-1, -2)
        self._bias, self._blind = None, None
        if inputs.mask is not None:
            self._bias, self._blind = (bias_of if kept_bias is None else kept_bias.bias)(
                inputs.mask, not self.front.count
            )

    def chunk(self, kv_heads: slice) -> Chunk:
        """Return the query heads that share some key heads, with their keys and values."""
        repeat = self._inputs.query.shape[1] // self._inputs.key.shape[1]
        heads = slice(kv_heads.start * repeat, kv_heads.stop * repeat)
        return Chunk(heads, self._keys[:, kv_heads].flatten(0, 1), self._inputs.value[:, kv_heads].flatten(0, 1))

    def block(self, chunk: Chunk, rows: slice) -> Tensor:
        """Return the scores of a block of queries [batch, head, query, key], the constant keys first."""
        part = self._query[:, chunk.heads, rows]
        scores = self._products(part, chunk.keys)
        if self._inputs.causal:
            later = torch.arange(rows.start, rows.stop, device=scores.device)[:, None] < torch.arange(
                scores.shape[-1], device=scores.device
            )
            scores += torch.zeros(later.shape, device=scores.device, dtype=torch.float32).masked_fill_(
                later, -torch.inf
            )
        elif self._bias is not None:
            scores += _part(self._bias, chunk.heads, rows)
        if not self.front.count:
            return scores
        return torch.cat([self.front.scores(part, self._inputs.scale, chunk.heads), scores], dim=-1)

    def blind(self, heads: slice, rows: slice) -> Tensor | None:
        """Return which queries of a block see nothing, bool [batch, head, query, 1] or broadcast; None without any."""
        return None if self._blind is None else _part(self._blind, heads, rows)

    def _products(self, part: Tensor, keys: Tensor) -> Tensor:
        """Return queries times keys, scaled; query heads that share a key head are multiplied together."""
        batch, heads, length, dim = part.shape
        part, nothing = part.reshape(len(keys), -1, dim), part.new_zeros(())
        scores = torch.baddbmm(nothing, part, keys, beta=0, alpha=self._inputs.scale)
        return scores.float().view(batch, heads, length, -1)


@dataclass(frozen=True, eq=False)
class Front:
    """The constant keys in front of all others as a `Prefix` has them, but with batch and query heads, and the dtype of
    the products.
    """

    count: int
    keys: Tensor | None
    values: Tensor | None
    logits: Tensor | None
    dtype: torch.dtype

    @classmethod
    def of(cls, inputs: AttentionInputs, dtype: torch.dtype) -> "Front":
        prefix = inputs.prefix
        if prefix is None:
            return cls(0, None, None, None, dtype)
        keys, values = (None if one is None else per_head(one, inputs.query) for one in (prefix.keys, prefix.values))
        logits = None if prefix.logits is None else prefix.logits.to(inputs.query.device).float()
        return cls(prefix.count, keys, values, logits, dtype)

    def scores(self, part: Tensor, scale: float, heads: slice) -> Tensor:
        """Return the scores of the constant keys for a block of queries, [batch, head, query, count]."""
        if self.keys is not None:
            return product(part, self.keys[:, heads].to(part.dtype).transpose(-1, -2), self.dtype) * scale
        assert self.logits is not None
        return self.logits[None, heads, None, :].expand(*part.shape[:3], -1)


def per_head(constant: Tensor, query: Tensor) -> Tensor:
    """Return constant keys or values of a `Prefix` for every query head, [batch, head, count, dim]."""
    batched = constant if constant.ndim == 4 else constant[None]
    return batched.to(query).repeat_interleave(query.shape[1] // batched.shape[1], dim=1).expand(len(query), -1, -1, -1)


class Taken:
    """The hidden keys of one call behind ``front`` constant ones. A query that would lose all it sees keeps all."""

    def __init__(self, hidden: Sequence[Hidden], front: int) -> None:
        self._masked = [one for one in hidden if not one.zeroed]
        self._zeroed = [one for one in hidden if one.zeroed]
        self._front = front

    def in_force(
        self, scores: Callable[[], Tensor], weights: Tensor, blind: Tensor | None, heads: slice, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the weights of a block in force, and the share each query loses [batch, head, query].

        The softmax without a key is the softmax with it, scaled up for the other keys. A second softmax is taken where
        a query keeps too little, where some keys are masked and others zeroed, and on a GPU, where testing this would
        wait. ``scores`` computes the block's scores again; it and this write over ``weights``.
        """
        masked, zeroed = self._union(self._masked, heads, rows), self._union(self._zeroed, heads, rows)
        gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
        assert gone is not None
        if (masked is None or zeroed is None) and not weights.is_cuda:
            stays = (~gone).float()  # multiplying is three times as fast as filling in 0
            kept = weights * stays if weights.requires_grad else weights.mul_(stays)
            nothing = weights.new_zeros(()) if blind is None else blind.to(weights)
            # A query that loses nothing stays bit-identical.
            left = torch.where(gone.any(-1, keepdim=True), kept.sum(-1, keepdim=True), 1 - nothing)
            if not bool((left + nothing < LEAST_KEPT).any()):
                lost = (1 - nothing - left).clamp(min=0)[..., 0].detach()
                factor = 1 / (left + nothing)
                return (kept if masked is None else kept * factor if kept.requires_grad else kept.mul_(factor)), lost
        again = scores()
        weights = torch.softmax(again, dim=-1)
        if blind is not None:
            weights = weights.masked_fill(blind, 0.0)
        spared = torch.isneginf(again.masked_fill(gone, -torch.inf).amax(dim=-1, keepdim=True))
        gone = gone & ~spared
        in_force = weights
        if masked is not None:
            in_force = torch.softmax(again.masked_fill(masked & ~spared, -torch.inf), dim=-1)
            if blind is not None:
                in_force = in_force.masked_fill(blind, 0.0)
        if zeroed is not None:
            in_force = in_force.masked_fill(zeroed & ~spared, 0.0)
        return in_force, (weights * gone).sum(-1).detach()

    def _union(self, hidden: Sequence[Hidden], heads: slice, rows: slice) -> Tensor | None:
        """Return bool [batch, head, query, key] of a block, the constant keys in front included."""
        union: Tensor | None = None
        for one in hidden:
            keys = _part(one.keys, heads, rows)
            keys = torch.nn.functional.pad(keys, (self._front, 0), value=one.front) if self._front else keys
            if one.heads is not None:
                keys = keys & one.heads[None, heads, None, None].to(keys.device)
            if one.queries is not None:
                keys = keys & one.queries[:, None, rows, None]
            union = keys if union is None else union | keys
        return union


def _of_heads(tensor: Tensor, heads: slice) -> Tensor:
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]


def _part(mask: Tensor, heads: slice, rows: slice) -> Tensor:
    mask = _of_heads(mask, heads)
    return mask if mask.shape[2] == 1 else mask[:, :, rows]


def mask_for(network: Any, seen: Tensor | None) -> Tensor | None:
    """Return bool [1 or batch, 1, query, key] in the form that a transformers network takes: its eager attention adds
    the mask to the scores.
    """
    if seen is None or network.config._attn_implementation != "eager":
        return seen
    added = torch.zeros(seen.shape, dtype=network.dtype, device=seen.device)
    return added.masked_fill(~seen, torch.finfo(network.dtype).min)
