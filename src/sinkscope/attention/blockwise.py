"""Attention and its column sums in one pass over blocks of queries, without ever holding a map of queries × keys.

The scores of a block are computed once, for one softmax, one product with the values and one with the query groups.
Scores and sums are float32 whatever the inputs are. Traces call this pass ``sweep``.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sinkscope.attention.records import AttentionInputs, Columns
from sinkscope.attention.scores import Chunk, KeptBias, Scores, Taken, product

BLOCK = 512  # queries in a block
CPU_SCORES, GPU_SCORES = 1 << 19, 1 << 26  # most scores at once, for each thread of a CPU


def compute_blockwise(
    inputs: AttentionInputs, *, block: int | None = None, kept_bias: KeptBias | None = None
) -> tuple[Tensor, Columns]:
    """Return attention output [batch, head, query, value_dim] and column sums, in blocks of so many queries."""
    with torch.autocast(inputs.query.device.type, enabled=False):  # which would round scores and sums
        run = _Pass(inputs, block or BLOCK, kept_bias or KeptBias())
        for chunk in run.chunks():
            run.attend(chunk)
        return run.output, run.columns()


class _Pass:
    def __init__(self, inputs: AttentionInputs, block: int, kept_bias: KeptBias) -> None:
        query, hiding = inputs.query, bool(inputs.hidden)
        batch, heads, queries, _ = query.shape
        keys = inputs.key.shape[2]
        self._inputs = inputs
        self._in_place = not inputs.needs_gradient
        self._scores = Scores(inputs, kept_bias if self._in_place else None)
        self._front = self._scores.front.count
        self._taken = Taken(inputs.hidden, self._front) if hiding else None
        self._block = min(block, queries)
        by_query = query.new_empty(batch, queries, heads, inputs.value.shape[-1])  # read so by the output projection
        self.output = by_query.transpose(1, 2)
        self._sums = inputs.groups.new_zeros(batch, heads, inputs.groups.shape[1], keys + self._front)
        self._local = torch.zeros_like(self._sums) if hiding else None
        self._diagonal = self._sums.new_zeros(batch, heads, queries)
        self._last_row = self._sums.new_zeros(batch, heads, keys)
        self._last_in_force = torch.zeros_like(self._last_row) if hiding else self._last_row
        self._removed = torch.zeros_like(self._diagonal) if hiding else None

    def chunks(self) -> Iterator[Chunk]:
        """Yield the heads in equal parts, as large as the limit on scores allows."""
        query, kv_heads = self._inputs.query, self._inputs.key.shape[1]
        limit = CPU_SCORES * torch.get_num_threads() if query.device.type == "cpu" else GPU_SCORES
        of_one = len(query) * (query.shape[1] // kv_heads) * self._block * self._inputs.key.shape[2]
        size = max(1, min(kv_heads, limit // max(1, of_one)))
        size = math.ceil(kv_heads / math.ceil(kv_heads / size))
        for first in range(0, kv_heads, size):
            yield self._scores.chunk(slice(first, min(first + size, kv_heads)))

    def attend(self, chunk: Chunk) -> None:
        queries = self._inputs.query.shape[2]
        for start in range(0, queries, self._block):
            self._attend_block(chunk, slice(start, min(start + self._block, queries)))

    def _attend_block(self, chunk: Chunk, rows: slice) -> None:
        """Compute one block of queries of some heads."""
        heads, front = chunk.heads, self._front
        scores = self._scores.block(chunk, rows)
        weights = torch.softmax(scores, dim=-1, out=scores) if self._in_place else torch.softmax(scores, dim=-1)
        blind = self._scores.blind(heads, rows)
        if blind is not None:
            weights = weights.masked_fill(blind, 0.0)
        groups, own_key = self._inputs.groups[:, None, :, rows], rows.start + self._inputs.own_key
        last = rows.stop == self._inputs.query.shape[2]
        plain = weights.detach()
        if last:
            self._last_row[:, heads] = plain[:, :, -1, front:]
        if self._taken is not None and self._local is not None and self._removed is not None:
            self._local[:, heads].add_(product(groups, plain, self._scores.dtype))
            weights, lost = self._taken.in_force(lambda: self._scores.block(chunk, rows), weights, blind, heads, rows)
            self._removed[:, heads, rows] = lost
            plain = weights.detach()
            if last:
                self._last_in_force[:, heads] = plain[:, :, -1, front:]
        self._sums[:, heads].add_(product(groups, plain, self._scores.dtype))
        self._diagonal[:, heads, rows] = _diagonal(plain, own_key, front)
        self.output[:, heads, rows] = self._mix(weights, chunk.values, heads)

    def _mix(self, weights: Tensor, values: Tensor, heads: slice) -> Tensor:
        batch, own, length, _ = weights.shape
        front, weights = self._scores.front, weights.to(values.dtype)
        body = weights[..., front.count :] if front.count else weights
        mixed = torch.bmm(body.reshape(len(values), -1, values.shape[1]), values).view(batch, own, length, -1)
        if front.values is None:
            return mixed
        return mixed + weights[..., : front.count] @ front.values[:, heads].to(weights.dtype)

    def columns(self) -> Columns:
        front = self._front
        return Columns(
            sums=self._sums[..., front:],
            local=None if self._local is None else self._local[..., front:],
            diagonal=self._diagonal,
            last_row=self._last_row,
            last_row_in_force=self._last_in_force,
            removed=self._removed,
            prefix=self._sums[..., :front] if front else None,
            path="sweep",
        )


def _diagonal(weights: Tensor, own_key: int, front: int) -> Tensor:
    """Return the weights of each query i of a block on its own key, ``own_key`` + i; 0 where there is none."""
    length = weights.shape[-2]
    weights = weights[..., front:] if front else weights
    found = torch.diagonal(weights, offset=max(own_key, -length), dim1=-2, dim2=-1)
    if found.shape[-1] == length:
        return found
    before = min(max(-own_key, 0), length)
    return torch.nn.functional.pad(found, (before, length - before - found.shape[-1]))
