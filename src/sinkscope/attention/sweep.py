"""Attention and the sums of its columns in one pass over query blocks, without ever holding an S×S map.

For every block of queries the scores against all keys exist once, for one softmax, one product with the values and
one product with the query groups. Scores and sums are fp32 whatever the inputs are.

What it does not do: dropout, soft-capping, attention sinks of other makers, paged caches. The seam refuses those.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from sinkscope.attention.hidden import Hidden, Taken
from sinkscope.errors import AttentionError

Path = Literal["sweep", "triton", "flash"]
"""The implementations of `attend`: this one, and those of `fused`."""

BLOCK = 512  # queries at a time
CPU_SCORES, GPU_SCORES = 1 << 19, 1 << 26  # scores that exist at once, for each thread of a CPU


@dataclass(frozen=True)
class Prefix:
    """Constant keys in front of all others, seen by every query (a folded sink token, or a learned logit).

    Attributes:
        keys: [kv_head, count, dim], or with a batch axis in front, already rotated; None when ``logits`` says the
            scores directly.
        values: as the keys; None is a value of zero.
        logits: [head, count], scores that do not depend on the query.
    """

    keys: Tensor | None = None
    values: Tensor | None = None
    logits: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.keys is None) == (self.logits is None):
            raise AttentionError("a prefix has either keys or logits; found both or neither")

    @property
    def count(self) -> int:
        """How many constant keys."""
        source = self.keys if self.keys is not None else self.logits
        assert source is not None
        return source.shape[-1 if self.keys is None else -2]


@dataclass(frozen=True)
class Columns:
    """What a sweep saw besides its output; all fp32, in queries' worth of attention.

    Attributes:
        sums: [batch, head, group, key], column sums as they took effect.
        local: [batch, head, group, key], the same queries and keys normalised without the hiding; None when
            nothing was hidden.
        diagonal: [batch, head, query], each query's attention on itself.
        last_row: [batch, head, key], the newest query's own attention, without the hiding.
        last_row_in_force: the same as it took effect.
        removed: [batch, head, query], the share of each query's attention that went to keys taken from it, measured
            without the hiding; None when nothing was hidden.
        prefix: [batch, head, group, count], what the constant keys in front received.
        path: which implementation made them: ``sweep``, ``triton`` or ``flash`` (see `paths`). It is the one that ran, also
            where a call was too much for the one that such tensors take as a rule.
    """

    sums: Tensor
    local: Tensor | None
    diagonal: Tensor
    last_row: Tensor
    last_row_in_force: Tensor
    removed: Tensor | None
    prefix: Tensor | None
    path: Path


class Workspace:
    """Where the scores of a block lie. One that outlives its call spares a CPU fresh pages for every layer, which cost as much as the sums.

    One call at a time; what it holds grows to the largest block (2 MiB for each thread, or one head's block if that is more).
    It also holds the last mask, and what is added to the scores for it: the layers of a stack share both.
    """

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._bias: tuple[Tensor, int, bool, tuple[Tensor | None, Tensor | None]] | None = None

    def take(self, size: int, device: torch.device) -> Tensor:
        """fp32 [size], whatever lies there."""
        if device.type != "cpu":  # whose allocator keeps its memory anyway
            return torch.empty(size, device=device)
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = torch.empty(size, device="cpu")
        return self._buffer[:size]

    def bias(self, mask: Tensor | None, alone: bool) -> tuple[Tensor | None, Tensor | None]:
        """`_bias` of a mask, made once as long as it is the same."""
        if mask is None or mask.is_inference():  # which keeps no count of its changes
            return _bias(mask, alone)
        held = self._bias
        if held is None or held[0] is not mask or held[1:3] != (mask._version, alone):
            self._bias = held = (mask, mask._version, alone, _bias(mask, alone))
        return held[3]


def attend(
    query: Float[Tensor, "batch head query dim"],
    key: Float[Tensor, "batch kv_head key dim"],
    value: Float[Tensor, "batch kv_head key value_dim"],
    *,
    groups: Float32[Tensor, "batch group query"],
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    hidden: Bool[Tensor, "#batch #head key"] | Sequence[Hidden] | None = None,
    prefix: Prefix | None = None,
    block: int | None = None,
    workspace: Workspace | None = None,
) -> tuple[Float[Tensor, "batch head query value_dim"], Columns]:
    """Attention output and column sums.

    Args:
        groups: weight of each query in each group's sums: 1 for members, 0 for others and for padding.
        scale: factor on the scores; 1/√dim when None.
        mask: [1 or batch, 1 or head, 1 or query, key], boolean (True is visible) or additive.
        causal: query i sees keys 0…i (upper-left, as sdpa has it); only without a mask.
        hidden: keys taken away before the softmax, or any number of `Hidden`. A query that would lose its last
            visible key keeps all of them.
        block: queries per block, 512 when None.
        workspace: place for the scores, kept from call to call; not used where something needs a gradient.

    Raises:
        AttentionError: causal together with a mask, or heads that do not divide.
    """
    with torch.autocast(query.device.type, enabled=False), _products("ieee", query.device):  # what either may round are scores and sums
        return _attend(query, key, value, groups, scale, mask, causal, hidden, prefix, block, workspace or Workspace())


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    hidden: Tensor | Sequence[Hidden] | None,
    prefix: Prefix | None,
    block: int | None,
    workspace: Workspace,
) -> tuple[Tensor, Columns]:
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if causal and mask is not None:
        raise AttentionError("expected either a mask or causal=True, found both; fold causality into the mask")
    if heads % kv_heads:
        raise AttentionError(f"expected query heads to be a multiple of key heads, found {heads} and {kv_heads}")
    repeat = heads // kv_heads
    scale = 1 / math.sqrt(dim) if scale is None else scale
    block = min(block or BLOCK, queries)
    front = _Front.of(prefix, batch, heads, kv_heads, query, value)
    output = query.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)  # the layout the output projection reads
    sums = torch.zeros(batch, heads, groups.shape[1], keys + front.count, dtype=torch.float32, device=query.device)
    local = torch.zeros_like(sums) if hidden is not None else None
    diagonal = sums.new_zeros(batch, heads, queries)
    last_row = sums.new_zeros(batch, heads, keys)
    in_force = last_row if hidden is None else torch.zeros_like(last_row)
    removed = None if hidden is None else torch.zeros_like(diagonal)
    taken = None if hidden is None else Taken(hidden, front.count, query.device)
    precise = query.float()  # scores rounded to bfloat16 before the softmax would be off by a hundredth and more
    precision = "bf16" if query.dtype == key.dtype == torch.bfloat16 else "ieee"
    transposed = key.float().transpose(-1, -2)
    if precision == "bf16" and query.device.type == "cpu":
        transposed = transposed.contiguous()  # or each block's product would copy it
    given = [query, key, value, front.keys, front.values, front.logits, mask]
    place = None if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in given) else workspace
    bias, blind = (place.bias if place is not None else _bias)(mask, not front.count)
    limit = CPU_SCORES * torch.get_num_threads() if query.device.type == "cpu" else GPU_SCORES
    chunk = max(1, min(kv_heads, limit // max(1, batch * repeat * block * keys)))
    chunk = math.ceil(kv_heads / math.ceil(kv_heads / chunk))  # equal parts
    for first in range(0, kv_heads, chunk):
        shared = slice(first, min(first + chunk, kv_heads))
        own = slice(shared.start * repeat, shared.stop * repeat)
        near, mixed = transposed[:, shared].flatten(0, 1), value[:, shared].flatten(0, 1)
        bare = None if taken is None else taken.values(value[:, shared], own)
        bare = None if bare is None else bare.flatten(0, 1)
        given_out, received, on_itself = output[:, own], sums[:, own], diagonal[:, own]
        if taken is None and not front.count and blind is None and place is not None and block == queries:
            # The common call, without the views and copies that blocks of rows and hidden keys need: 1.4 % of a recorded run.
            scores = _scores(precise[:, own], near, scale, place, precision)
            if causal:
                scores += _causal_bias(slice(0, queries), keys, query.device)
            elif bias is not None:
                scores += _part(bias, own, slice(None))
            torch.softmax(scores, dim=-1, out=scores)
            torch.matmul(groups[:, None], scores, out=received)
            on_itself.copy_(_diagonal(scores, 0 if causal else keys - queries, 0))
            last_row[:, own].copy_(scores[:, :, -1])
            given_out.copy_(_mix(scores.to(value.dtype), mixed, front, own))
            continue
        for start in range(0, queries, block):
            rows = slice(start, min(start + block, queries))
            part = precise[:, own, rows]

            def scored(rows: slice = rows, part: Tensor = part, near: Tensor = near, own: slice = own) -> Tensor:
                scores = _scores(part, near, scale, place, precision)
                if causal:
                    scores += _causal_bias(rows, keys, query.device)
                elif bias is not None:
                    scores += _part(bias, own, rows)
                return front.scores(scores, part, scale, own)

            scores = scored()
            weights = torch.softmax(scores, dim=-1) if place is None else torch.softmax(scores, dim=-1, out=scores)
            unseeing = None if blind is None else _part(blind, own, rows)
            if unseeing is not None:
                weights = weights.masked_fill(unseeing, 0.0)
            membership, shift = groups[:, None, :, rows], start + (0 if causal else keys - queries)
            plain = weights.detach()
            if rows.stop == queries:
                last_row[:, own] = plain[:, :, -1, front.count :]
            if taken is not None and local is not None and removed is not None:
                quick = taken.quickly(weights, unseeing, own)
                if quick is not None and bare is not None:
                    # In force, a weight is itself times (kept key) times (query's factor): neither needs a map of its own.
                    kept, factor, removed[:, own, rows] = quick
                    seen = factor.detach()
                    both = torch.cat([membership.expand(-1, weights.shape[1], -1, -1), membership * seen.mT], dim=2) @ plain
                    local[:, own].add_(both[:, :, : groups.shape[1]])
                    received.add_(both[:, :, groups.shape[1] :] * kept)
                    if rows.stop == queries:
                        in_force[:, own] = (plain[:, :, -1:] * kept * seen[:, :, -1:])[:, :, 0, front.count :]
                    spared = _diagonal(kept.expand_as(plain), shift, front.count)
                    on_itself[:, :, rows] = _diagonal(plain, shift, front.count) * spared * seen[..., 0]
                    given_out[:, :, rows] = _mix(weights.to(value.dtype), bare, front, own) * factor.to(value.dtype)
                    continue
                local[:, own].add_(membership @ plain)
                weights, removed[:, own, rows] = taken.exactly(scored, weights, unseeing, own, rows)
                plain = weights.detach()
                if rows.stop == queries:
                    in_force[:, own] = plain[:, :, -1, front.count :]
            received.add_(membership @ plain)
            on_itself[:, :, rows] = _diagonal(plain, shift, front.count)
            given_out[:, :, rows] = _mix(weights.to(value.dtype), mixed, front, own)
    cut = front.count
    return output, Columns(
        sums=sums[..., cut:],
        local=None if local is None else local[..., cut:],
        diagonal=diagonal,
        last_row=last_row,
        last_row_in_force=in_force,
        removed=removed,
        prefix=sums[..., :cut] if cut else None,
        path="sweep",
    )


def _scores(part: Tensor, keys: Tensor, scale: float, place: Workspace | None, precision: str) -> Tensor:
    """Scores [batch, head, query, key] with keys [batch · kv_head, dim, key]; query heads that share one go into one product."""
    batch, heads, length, dim = part.shape
    part = part.reshape(len(keys), -1, dim)
    with _products(precision, part.device):
        if place is None:
            return (torch.bmm(part, keys) * scale).view(batch, heads, length, -1)
        scores = place.take(batch * heads * length * keys.shape[-1], part.device).view(len(keys), -1, keys.shape[-1])
        torch.baddbmm(scores, part, keys, beta=0, alpha=scale, out=scores)  # a beta of 0 ignores even a NaN that lies there
        return scores.view(batch, heads, length, -1)


@contextmanager
def _products(precision: str, device: torch.device) -> Iterator[None]:
    """Within it, a CPU multiplies fp32 matrices so, whatever the program has asked of torch.

    Rounding to what they came from loses nothing, and the products are added up in fp32 all the same, by a CPU's bfloat16 units
    where it has them. What torch knows here is of the whole process: other threads multiply so too while it lasts. Does nothing
    before torch 2.9, nor on a GPU, where torch refuses to be asked by its older switches meanwhile.

    Args:
        precision: ``ieee``, or ``bf16``: factors rounded to 8 digits.
    """
    matmul = getattr(torch.backends.mkldnn, "matmul", None) if device.type == "cpu" else None
    before = getattr(matmul, "fp32_precision", None)
    if matmul is None or before is None or before == precision or (before, precision) == ("none", "ieee"):
        yield
        return
    if before == getattr(torch.backends, "fp32_precision", None):
        before = "none"  # not set for products: what is set for all holds, also what will be
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _part(mask: Tensor, heads: slice, rows: slice) -> Tensor:
    mask = mask if mask.shape[1] == 1 else mask[:, heads]
    return mask if mask.shape[2] == 1 else mask[:, :, rows]


def _mix(weights: Tensor, value: Tensor, front: "_Front", heads: slice) -> Tensor:
    """Weights times values [batch · kv_head, key, dim], the constant ones in front included."""
    batch, own, length, _ = weights.shape
    body = weights[..., front.count :] if front.count else weights
    body = body.reshape(len(value), -1, value.shape[1])
    mixed = torch.bmm(body, value).view(batch, own, length, -1)
    return mixed if front.values is None else mixed + weights[..., : front.count] @ front.values[:, heads]


def _causal_bias(rows: slice, keys: int, device: torch.device) -> Tensor:
    """What is added to the scores of a block: −∞ on keys beyond the query."""
    later = torch.arange(rows.start, rows.stop, device=device)[:, None] < torch.arange(keys, device=device)
    return torch.zeros(later.shape, device=device).masked_fill_(later, -torch.inf)


def _bias(mask: Tensor | None, alone: bool) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, −∞ where a key is not visible, and which queries see nothing (None where there are none).

    Adding −∞ is ten times as fast as filling it in. Queries that see nothing get 0 for all, as softmax (and its
    gradient) would give NaN; their weights are set to 0 afterwards, which is sdpa's convention. Behind a prefix
    (not ``alone``) there is always something to see.
    """
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        bias, seen = torch.zeros(mask.shape, device=mask.device), mask
    else:
        # A finite stand-in for −∞, as transformers' eager masks have it, hides as well.
        bias, seen = mask.float(), mask > torch.finfo(mask.dtype).min / 2
    bias = bias.masked_fill(~seen, -torch.inf)
    blind = ~seen.any(dim=-1, keepdim=True)
    if not alone or not (blind.is_cuda or bool(blind.any())):  # asking a GPU would wait for it
        return bias, None
    return bias.masked_fill(blind, 0.0), blind


def _diagonal(weights: Tensor, offset: int, front: int) -> Tensor:
    """Query i of the block stands at key ``offset + i``; 0 where there is no such key."""
    length = weights.shape[-2]
    weights = weights[..., front:] if front else weights
    found = torch.diagonal(weights, offset=max(offset, -length), dim1=-2, dim2=-1)
    if found.shape[-1] == length:
        return found
    before = min(max(-offset, 0), length)
    return torch.nn.functional.pad(found, (before, length - before - found.shape[-1]))


@dataclass(frozen=True)
class _Front:
    """A prefix, brought to the shapes of one call."""

    count: int
    keys: Tensor | None
    values: Tensor | None
    logits: Tensor | None

    @classmethod
    def of(cls, prefix: Prefix | None, batch: int, heads: int, kv_heads: int, query: Tensor, value: Tensor) -> "_Front":
        if prefix is None:
            return cls(0, None, None, None)

        def per_head(constant: Tensor | None) -> Tensor | None:
            if constant is None:
                return None
            batched = constant if constant.ndim == 4 else constant[None]
            return batched.to(query).repeat_interleave(heads // kv_heads, dim=1).expand(batch, -1, -1, -1)

        logits = None if prefix.logits is None else prefix.logits.to(query.device).float()
        return cls(prefix.count, per_head(prefix.keys), per_head(prefix.values), logits)

    def scores(self, scores: Tensor, part: Tensor, scale: float, heads: slice) -> Tensor:
        if not self.count:
            return scores
        if self.keys is not None:
            mine = (part.float() @ self.keys[:, heads].float().transpose(-1, -2)) * scale
        else:
            assert self.logits is not None
            mine = self.logits[None, heads, None, :].expand(*scores.shape[:3], -1)
        return torch.cat([mine, scores], dim=-1)
