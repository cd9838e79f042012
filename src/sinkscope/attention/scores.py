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


class Workspace:
    """Memory for the scores of a block, which a CPU allocates slowly, and the last mask with its bias, which the layers
    of a stack share. It serves one call at a time and grows to the largest block.
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._bias: tuple[Tensor, int, bool, Bias] | None = None

    def take(self, size: int, device: torch.device) -> Tensor:
        """Return uninitialised float32 [size]."""
        if device.type != "cpu":  # its allocator keeps memory anyway
            return torch.empty(size, device=device, dtype=torch.float32)
        if self._buffer is None or len(self._buffer) < size:
            with torch.inference_mode(False):  # else no later call outside of it may write into the buffer
                self._buffer = torch.empty(size, device="cpu", dtype=torch.float32)
        return self._buffer[:size]

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

    Queries that see nothing get 0 for all keys, because softmax (and its gradient) would give NaN; their weights are set
    to 0 afterwards, which is sdpa's convention. ``alone``: no constant keys are in front, which every query would see.
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
    """Some query heads, the key heads that they share, the keys [batch · kv_head, dim, key] in the dtype of the products,
    and the values [batch · kv_head, key, value_dim].
    """

    heads: slice
    kv_heads: slice
    keys: Tensor
    values: Tensor


class Scores:
    """The scores of one call, float32, for some heads and a block of queries at a time."""

    def __init__(self, inputs: AttentionInputs, place: Workspace | None) -> None:
        self.dtype = product_dtype(inputs.query.device)
        self.front = Front.of(inputs, self.dtype)
        self._inputs, self._place = inputs, place
        # Scores rounded to bfloat16 before the softmax would be off by a hundredth and more.
        self._query = inputs.query.to(self.dtype)
        self._keys = inputs.key.to(self.dtype).transpose(-1, -2)
        self._bias, self._blind = None, None
        if inputs.mask is not None:
            self._bias, self._blind = (bias_of if place is None else place.bias)(inputs.mask, not self.front.count)
        self.all_see = self._blind is None  # whether every query is known to see a key

    def chunk(self, kv_heads: slice) -> Chunk:
        """Return the query heads that share some key heads, with their keys and values."""
        repeat = self._inputs.query.shape[1] // self._inputs.key.shape[1]
        heads = slice(kv_heads.start * repeat, kv_heads.stop * repeat)
        return Chunk(
            heads, kv_heads, self._keys[:, kv_heads].flatten(0, 1), self._inputs.value[:, kv_heads].flatten(0, 1)
        )

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
        part, scale = part.reshape(len(keys), -1, dim), self._inputs.scale
        if self._place is None:
            return (torch.bmm(part, keys) * scale).float().view(batch, heads, length, -1)
        memory = self._place.take(batch * heads * length * keys.shape[-1], part.device)
        scores = memory.view(len(keys), -1, keys.shape[-1])
        if self.dtype == torch.float32:  # a beta of 0 ignores even NaN in uninitialised memory
            torch.baddbmm(scores, part, keys, beta=0, alpha=scale, out=scores)
        else:
            scores.copy_(torch.bmm(part, keys).mul_(scale))
        return scores.view(batch, heads, length, -1)


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

    def __init__(self, hidden: Sequence[Hidden], front: int, device: torch.device, dtype: torch.dtype) -> None:
        self._masked = [one for one in hidden if not one.zeroed]
        self._zeroed = [one for one in hidden if one.zeroed]
        self._front, self._dtype = front, dtype
        self._kept: Tensor | None = None  # 1 for keys that are kept, where all queries lose the same ones
        if all(one.queries is None and one.keys.shape[2] == 1 and not one.front for one in hidden):
            whole = slice(None)
            masked, _, gone = self._unions(whole, whole)
            self._kept = (~gone.to(device)).float()
            self._whole = ~gone.to(device).any(-1, keepdim=True)  # heads that lose nothing
            self._unmasked = None if masked is None or not self._zeroed else (~masked.to(device)).float()

    def values(self, value: Tensor, heads: slice) -> Tensor | None:
        """Return values [batch, head, key, dim] with those of hidden keys 0; None where queries lose different keys."""
        if self._kept is None:
            return None
        kept = _of_heads(self._kept, heads)[..., self._front :].mT.to(value.dtype)
        count = kept.shape[1]
        shared = value if count in (1, value.shape[1]) else value.repeat_interleave(count // value.shape[1], dim=1)
        return shared * kept

    def quickly(self, weights: Tensor, blind: Tensor | None, heads: slice) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the factors that hiding applies to the weights of a block, 0 for queries that see nothing (``blind``):
        of each key, of each query, and the share taken away. None where queries lose different keys or keep too little,
        and on a GPU, where testing this would wait.
        """
        if self._kept is None or weights.is_cuda:
            return None
        kept = _of_heads(self._kept, heads)
        left = product(weights, kept.mT, self._dtype)
        nothing = 0.0 if blind is None else blind.to(left)
        left = torch.where(_of_heads(self._whole, heads), 1 - nothing, left)  # losing nothing stays bit-identical
        if bool((left + nothing < LEAST_KEPT).any()):
            return None
        unmasked = left
        if self._unmasked is not None:
            unmasked = product(weights, _of_heads(self._unmasked, heads).mT, self._dtype)
        factor = 1 / (unmasked + nothing) if self._masked else torch.ones_like(left)
        return kept, factor, (1 - nothing - left).clamp(min=0)[..., 0].detach()

    def exactly(
        self, scores: Callable[[], Tensor], weights: Tensor, blind: Tensor | None, heads: slice, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the weights of a block in force, and the share each query loses [batch, head, query]."""
        masked, zeroed, gone = self._unions(heads, rows)
        if (masked is None or zeroed is None) and not weights.is_cuda:
            stays = (~gone).float()  # multiplying is three times as fast as filling in 0
            kept = weights * stays if weights.requires_grad else weights.mul_(stays)
            nothing = weights.new_zeros(()) if blind is None else blind.to(weights)
            # A query that loses nothing stays bit-identical.
            left = torch.where(gone.any(-1, keepdim=True), kept.sum(-1, keepdim=True), 1 - nothing)
            if not bool((left + nothing < LEAST_KEPT).any()):  # scaled up, as in `quickly`
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

    def _unions(self, heads: slice, rows: slice) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Return the keys that a block loses before the softmax, those that it loses after it, and both."""
        masked, zeroed = self._union(self._masked, heads, rows), self._union(self._zeroed, heads, rows)
        gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
        assert gone is not None
        return masked, zeroed, gone

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
