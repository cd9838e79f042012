"""Attention and its column sums in one pass over blocks of queries, without ever holding a map of queries × keys.

The scores of a block are computed once, for one softmax, one product with the values and one with the query groups.
Scores and sums are float32 whatever the inputs are. Traces call this pass ``sweep``.
"""

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from sinkscope.attention.records import AttentionInputs, Columns, Hidden, Prefix, visible

BLOCK = 512  # queries in a block
CPU_SCORES, GPU_SCORES = 1 << 19, 1 << 26  # most scores at once, for each thread of a CPU
LEAST_KEPT = 1e-6  # below this share, the remaining weights of a query have too few digits to be scaled up

Bias = tuple[Tensor | None, Tensor | None]
"""The bias on scores, −∞ where a key is not visible; and which queries see nothing, None where all see something."""


def compute_blockwise(
    inputs: AttentionInputs, *, block: int | None = None, kept_bias: "KeptBias | None" = None
) -> tuple[Tensor, Columns]:
    """Return attention output [batch, head, query, value_dim] and column sums, in blocks of so many queries."""
    with torch.autocast(inputs.query.device.type, enabled=False):  # which would round scores and sums
        return _Pass(inputs, block or BLOCK, kept_bias or KeptBias()).run()


class _Pass:
    """One call: its inputs in the dtype of the products, and its results, which grow block by block."""

    def __init__(self, inputs: AttentionInputs, block: int, kept_bias: "KeptBias") -> None:
        query, hiding = inputs.query, bool(inputs.hidden)
        batch, heads, queries, _ = query.shape
        keys = inputs.key.shape[2]
        self._inputs = inputs
        self._in_place = not inputs.needs_gradient
        self._block = min(block, queries)
        self._dtype = product_dtype(query.device)
        # Scores rounded to bfloat16 before the softmax would be off by a hundredth and more.
        self._query = query.to(self._dtype)
        self._keys = inputs.key.to(self._dtype).transpose(-1, -2)
        self._front = front_of(inputs)
        front = self._front.count
        self._bias, self._blind = None, None
        if inputs.mask is not None:
            self._bias, self._blind = (kept_bias.bias if self._in_place else bias_of)(inputs.mask, not front)
        self._taken = [[one for one in inputs.hidden if one.zeroed == zeroed] for zeroed in (False, True)]
        by_query = query.new_empty(batch, queries, heads, inputs.value.shape[-1])  # read so by the output projection
        self._output = by_query.transpose(1, 2)
        self._sums = inputs.groups.new_zeros(batch, heads, inputs.groups.shape[1], keys + front)
        self._local = torch.zeros_like(self._sums) if hiding else None
        self._diagonal = self._sums.new_zeros(batch, heads, queries)
        self._last_row = self._sums.new_zeros(batch, heads, keys)
        self._last_in_force = torch.zeros_like(self._last_row) if hiding else self._last_row
        self._removed = torch.zeros_like(self._diagonal) if hiding else None

    def run(self) -> tuple[Tensor, Columns]:
        """Compute the heads in equal parts, as large as the limit on scores allows, and each in blocks of queries."""
        query, key, value, front = self._query, self._inputs.key, self._inputs.value, self._front.count
        queries, kv_heads = query.shape[2], key.shape[1]
        repeat = query.shape[1] // kv_heads
        limit = CPU_SCORES * torch.get_num_threads() if query.device.type == "cpu" else GPU_SCORES
        size = max(1, min(kv_heads, limit // max(1, len(query) * repeat * self._block * key.shape[2])))
        size = math.ceil(kv_heads / math.ceil(kv_heads / size))
        for first in range(0, kv_heads, size):
            part = slice(first, min(first + size, kv_heads))
            keys, values = self._keys[:, part].flatten(0, 1), value[:, part].flatten(0, 1)
            for start in range(0, queries, self._block):
                rows = slice(start, min(start + self._block, queries))
                self._attend(slice(part.start * repeat, part.stop * repeat), rows, keys, values)
        return self._output, Columns(
            sums=self._sums[..., front:],
            local=None if self._local is None else self._local[..., front:],
            diagonal=self._diagonal,
            last_row=self._last_row,
            last_row_in_force=self._last_in_force,
            removed=self._removed,
            prefix=self._sums[..., :front] if front else None,
            path="sweep",
        )

    def _attend(self, heads: slice, rows: slice, keys: Tensor, values: Tensor) -> None:
        """Compute one block of queries of some heads, from keys [batch · kv_head, dim, key] and values [batch ·
        kv_head, key, value_dim].
        """
        front = self._front.count
        scores = self._scores(heads, rows, keys)
        weights = torch.softmax(scores, dim=-1, out=scores) if self._in_place else torch.softmax(scores, dim=-1)
        blind = None if self._blind is None else _part(self._blind, heads, rows)
        if blind is not None:
            weights = weights.masked_fill(blind, 0.0)
        groups, own_key = self._inputs.groups[:, None, :, rows], rows.start + self._inputs.own_key
        last = rows.stop == self._query.shape[2]
        plain = weights.detach()
        if last:
            self._last_row[:, heads] = plain[:, :, -1, front:]
        if self._local is not None and self._removed is not None:
            self._local[:, heads].add_(product(groups, plain, self._dtype))
            weights, lost = self._in_force(weights, blind, heads, rows, keys)
            self._removed[:, heads, rows] = lost
            plain = weights.detach()
            if last:
                self._last_in_force[:, heads] = plain[:, :, -1, front:]
        self._sums[:, heads].add_(product(groups, plain, self._dtype))
        self._diagonal[:, heads, rows] = _diagonal(plain, own_key, front)
        weights = weights.to(values.dtype)
        body = weights[..., front:] if front else weights
        mixed = torch.bmm(body.reshape(len(values), -1, values.shape[1]), values).view(*body.shape[:3], -1)
        if self._front.values is not None:
            mixed = mixed + weights[..., :front] @ self._front.values[:, heads].to(weights.dtype)
        self._output[:, heads, rows] = mixed

    def _scores(self, heads: slice, rows: slice, keys: Tensor) -> Tensor:
        """Return the scores of a block of queries, float32 [batch, head, query, key], the constant keys first."""
        part, scale = self._query[:, heads, rows], self._inputs.scale
        by_key_head = part.reshape(
            len(keys), -1, part.shape[-1]
        )  # query heads that share a key head are multiplied together
        scores = torch.baddbmm(part.new_zeros(()), by_key_head, keys, beta=0, alpha=scale)
        scores = scores.float().view(*part.shape[:3], -1)
        if self._inputs.causal:
            later = scores.new_full(scores.shape[-2:], -torch.inf)
            scores += later.triu_(rows.start + 1)
        elif self._bias is not None:
            scores += _part(self._bias, heads, rows)
        if not self._front.count:
            return scores
        return torch.cat([front_scores(self._front, part, scale, heads, self._dtype), scores], dim=-1)

    def _in_force(
        self, weights: Tensor, blind: Tensor | None, heads: slice, rows: slice, keys: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weights of a block in force, written over ``weights``, and the share each query loses [batch,
        head, query]; one that would lose all it sees keeps all.

        The softmax without a key is the softmax with it, scaled up for the other keys. A second softmax is taken where
        a query keeps too little, where some keys are masked and others zeroed, and on a GPU, where testing this would
        wait.
        """
        masked, zeroed = (self._union(one, heads, rows) for one in self._taken)
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
        again = self._scores(heads, rows, keys)
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
        union, front = None, self._front.count
        for one in hidden:
            keys = _part(one.keys, heads, rows)
            keys = torch.nn.functional.pad(keys, (front, 0), value=one.front) if front else keys
            if one.heads is not None:
                keys = keys & one.heads[None, heads, None, None].to(keys.device)
            if one.queries is not None:
                keys = keys & one.queries[:, None, rows, None]
            union = keys if union is None else union | keys
        return union


def _diagonal(weights: Tensor, own_key: int, front: int) -> Tensor:
    """Return the weights of each query i of a block on its own key, ``own_key`` + i; 0 where there is none."""
    length = weights.shape[-2]
    weights = weights[..., front:] if front else weights
    found = torch.diagonal(weights, offset=max(own_key, -length), dim1=-2, dim2=-1)
    if found.shape[-1] == length:
        return found
    before = min(max(-own_key, 0), length)
    return torch.nn.functional.pad(found, (before, length - before - found.shape[-1]))


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


def front_of(inputs: AttentionInputs) -> Prefix:
    """Return the constant keys in front of all others with batch and query heads; without any, an empty prefix."""
    prefix, query = inputs.prefix or Prefix(), inputs.query
    keys, values = (None if one is None else _per_head(one, query) for one in (prefix.keys, prefix.values))
    return Prefix(keys, values, None if prefix.logits is None else prefix.logits.to(query.device).float())


def front_scores(front: Prefix, part: Tensor, scale: float, heads: slice, dtype: torch.dtype) -> Tensor:
    """Return the scores of the constant keys for a block of queries, [batch, head, query, count]."""
    if front.keys is not None:
        return product(part, front.keys[:, heads].to(part.dtype).transpose(-1, -2), dtype) * scale
    assert front.logits is not None
    return front.logits[None, heads, None, :].expand(*part.shape[:3], -1)


def _per_head(constant: Tensor, query: Tensor) -> Tensor:
    """Return constant keys or values of a `Prefix` for every query head, [batch, head, count, dim]."""
    batched = constant if constant.ndim == 4 else constant[None]
    return batched.to(query).repeat_interleave(query.shape[1] // batched.shape[1], dim=1).expand(len(query), -1, -1, -1)


def _part(mask: Tensor, heads: slice, rows: slice) -> Tensor:
    mask = mask if mask.shape[1] == 1 else mask[:, heads]
    return mask if mask.shape[2] == 1 else mask[:, :, rows]
