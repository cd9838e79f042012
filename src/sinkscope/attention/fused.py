"""Attention with column sums by Triton's kernels: two launches a layer, no map of queries × keys, no wait.

Where torch would give a call to flash attention or to cuDNN, that kernel gives the output, so that it is the stock
model's, and the log-sum-exp; only the columns are ours.
"""

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend

from sinkscope.attention.blockwise import front_of, front_scores, product_dtype
from sinkscope.attention.records import AttentionInputs, Columns, KernelError
from sinkscope.attention.triton import attention_kernel, column_kernel, norm_kernel

PASSING = ("out of memory", "illegal memory access", "device-side assert", "launch failure", "misaligned address")
"""Words of errors that other work on the device causes, not these kernels."""
LOG2E = math.log2(math.e)
# A kernel's parameters are no Python parameters to a type checker.
_attention: Any = attention_kernel
_columns: Any = column_kernel
_norms: Any = norm_kernel
INTERPRETED = not isinstance(attention_kernel, triton.JITFunction)


def compute_fused(inputs: AttentionInputs) -> tuple[Tensor, Columns]:
    """Return attention output and column sums, as `blockwise.compute_blockwise` gives them; no gradients."""
    query, key, value = (
        one if one.stride(-1) == 1 else one.contiguous() for one in (inputs.query, inputs.key, inputs.value)
    )
    batch, heads, queries, dim = query.shape
    kv_heads, keys, value_dim = key.shape[1], key.shape[2], value.shape[-1]
    groups, scale, causal = inputs.groups.contiguous(), inputs.scale, inputs.causal
    mask, shift = inputs.mask, inputs.own_key
    hidden, front, dtype = _bitmap(inputs), front_of(inputs), product_dtype(query.device)
    bare = mask is None and hidden is None and not front.count
    by_torch = _torch_takes(query, key, value, causal) if bare else None
    fresh = partial(torch.empty, dtype=torch.float32, device=query.device)
    if by_torch is not None:
        output, lse_all = _attention_of_torch(by_torch, query, key, value, causal, scale)
        # 0 for queries without a key at their own place
        diagonal = (torch.empty_like if queries == keys else torch.zeros_like)(lse_all)
    else:
        by_query = query.new_empty(batch, queries, heads, value_dim)  # the layout that the output projection reads
        output = by_query.transpose(1, 2)
        lse_all, diagonal = fresh(batch, heads, queries), fresh(batch, heads, queries)
    sums, last_row = fresh(batch, heads, groups.shape[1], keys), fresh(batch, heads, keys)
    lse, removed, local, last_in_force = lse_all, None, None, last_row
    if hidden is not None:
        lse, removed, local, last_in_force = (torch.empty_like(one) for one in (lse_all, diagonal, sums, last_row))
    scores = front_scores(front, query.to(dtype), scale, slice(None), dtype) if front.count else None
    seen, kind = (None, 0) if mask is None else (mask.view(torch.uint8), 1) if mask.dtype == torch.bool else (mask, 2)
    seen_strides = (0, 0, 0, 0) if seen is None else seen.expand(batch, heads, queries, keys).stride()
    bitmap = None if hidden is None else hidden.view(torch.uint8)
    bitmap_strides = (0, 0, 0) if bitmap is None else bitmap.expand(batch, heads, keys).stride()
    least = 0.0 if mask is None or kind == 1 else torch.finfo(mask.dtype).min / 2
    of_attention = _fitted(_tiles(query, dim, value_dim, mask is not None, hidden is not None), queries, keys)
    of_columns = _fitted(_column_tiles(query, dim, hidden is not None), queries, keys)
    shared = {
        "CAUSAL": causal,
        "MASKED": kind,
        "FLAT": kind > 0 and (queries == 1 or seen_strides[2] == 0),
        "HIDING": hidden is not None,
        "PRECISION": "tf32x3" if query.dtype == torch.float32 else "ieee",  # three products keep float32's digits
        "WIDEN": INTERPRETED and query.dtype == torch.bfloat16,
        "BD": _at_most(256, dim),
    }
    logs = None if scores is None else (torch.logsumexp(scores, -1) * LOG2E).contiguous()
    with _launching(query):
        if by_torch is None:
            _attention[(triton.cdiv(queries, of_attention["BM"]) * batch * heads,)](
                    query, key, value, output, lse, lse_all, removed, diagonal, seen, bitmap, logs,
                    *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *output.stride()[:3],
                    *seen_strides, *bitmap_strides,
                    heads, heads // kv_heads, queries, keys, dim, value_dim, shift, scale * LOG2E, least,
                    FRONTED=bool(front.count), BV=_at_most(256, value_dim), **shared, **of_attention,
                )  # fmt: skip
        _columns[(triton.cdiv(keys, of_columns["BN"]) * batch * heads,)](
                query, key, lse, lse_all, groups, sums, local, diagonal, last_row, last_in_force, seen, bitmap,
                *query.stride()[:3], *key.stride()[:3], *groups.stride()[:2], *seen_strides, *bitmap_strides,
                heads, heads // kv_heads, queries, keys, dim, shift, scale * LOG2E, least,
                GROUPS=groups.shape[1], BG=triton.next_power_of_2(groups.shape[1]), BY_TORCH=by_torch is not None,
                **shared, **of_columns,
            )  # fmt: skip
    received = None
    if scores is not None:
        # Behind constant keys a query always keeps something to see, so that ``lse`` is in force for all.
        weights = torch.exp(scores - (lse / LOG2E)[..., None])
        received = groups[:, None] @ weights
        if front.values is not None:
            output = output + weights.to(value.dtype) @ front.values.to(value.dtype)
    return output, Columns(sums, local, diagonal, last_row, last_in_force, removed, received, by_torch or "triton")


def compute_norms(
    key: Tensor, value: Tensor, projection: Tensor | None, newest: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the norms of `projections.KeyNorms` in one launch, the third of so many of the newest keys."""
    key, value = (one if one.stride(-1) == 1 else one.contiguous() for one in (key.detach(), value.detach()))
    batch, kv_heads, keys, dim = key.shape
    value_dim = value.shape[-1]
    fresh = partial(torch.empty, dtype=torch.float32, device=key.device)
    of_keys, of_values = fresh(batch, kv_heads, keys), fresh(batch, kv_heads, keys)
    outputs = None if projection is None else fresh(batch, len(projection), newest)
    heads, rank = (kv_heads, 0) if projection is None else projection.shape[:2]
    rows, parts = (128, 64) if max(dim, value_dim) <= 128 else (32, 32)
    rows, parts = _at_most(rows, keys), _at_most(parts, max(rank, 1))
    with _launching(key):
        _norms[(triton.cdiv(keys, rows) * batch * kv_heads,)](
                key, value, projection, of_keys, of_values, outputs, *key.stride()[:3], *value.stride()[:3],
                kv_heads, heads // kv_heads, keys, keys - newest, dim, value_dim, rank,
                PROJECTED=projection is not None, HALF=value.element_size() == 2, BN=rows, BR=parts,
                BD=_at_most(256, dim), BV=_at_most(256, value_dim), num_warps=4, num_stages=1,
            )  # fmt: skip
    return of_keys, of_values, outputs


@contextlib.contextmanager
def _launching(tensor: Tensor) -> Iterator[None]:
    """Let Triton launch on the device of a tensor; raise KernelError for errors that the kernels cause."""
    here = not tensor.is_cuda or tensor.device.index == torch.cuda.current_device()
    try:
        with contextlib.nullcontext() if here else torch.cuda.device(tensor.device):
            yield
    except Exception as error:  # a compiler that is missing or old, a device too small: each stage has its own kind
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in PASSING):
            raise
        raise KernelError(f"{type(error).__name__}: {error}") from error


def _bitmap(inputs: AttentionInputs) -> Tensor | None:
    """Return the hidden keys of all `Hidden` as bool [1 or batch, 1 or head, key]; None where nothing is hidden."""
    union: Tensor | None = None
    for one in inputs.hidden:
        keys = one.keys[:, :, 0].to(inputs.query.device)
        keys = keys if one.heads is None else keys & one.heads[None, :, None].to(keys.device)
        union = keys if union is None else union | keys
    return union


def _torch_takes(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Literal["flash", "cudnn"] | None:
    """Return which of torch's kernels with a log-sum-exp the stock model would use; None for another."""
    if not query.is_cuda or query.shape[1] != key.shape[1] or (causal and query.shape[2] != key.shape[2]):
        return None  # torch would repeat heads, and align a causal call of unequal lengths to the last key
    chosen = SDPBackend(torch._fused_sdp_choice(query, key, value, None, 0.0, causal))
    if chosen == SDPBackend.CUDNN_ATTENTION:
        return "cudnn"
    return "flash" if chosen == SDPBackend.FLASH_ATTENTION and not query.shape[-1] % 8 else None  # it would pad heads


def _attention_of_torch(
    kernel: Literal["flash", "cudnn"], query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output, and the natural log-sum-exp of each query, float32 [batch, head, query]."""
    if kernel == "cudnn":
        attention = torch.ops.aten._scaled_dot_product_cudnn_attention
        output, lse, *_ = attention(query, key, value, None, True, 0.0, causal, scale=scale)
    else:
        name = "_scaled_dot_product_flash_attention" + ("" if query.is_cuda else "_for_cpu")
        output, lse, *_ = getattr(torch.ops.aten, name)(query, key, value, 0.0, causal, scale=scale)
    return output, lse.float().reshape(query.shape[:3]).contiguous()


def _tiles(query: Tensor, dim: int, value_dim: int, masked: bool, hiding: bool) -> tuple[int, int, int, int]:
    """Return queries and keys of a tile, warps and stages; it fits shared memory and, on capability 9.0, registers."""
    wide = max(dim, value_dim)
    if query.dtype == torch.float32:
        if wide <= 64:
            return (32, 32, 4, 1) if masked and hiding else (64, 32, 4, 1)
        return (16, 16, 8, 1) if wide > 128 else (32, 16, 4, 1) if hiding else (32, 32, 8, 1)
    if wide <= 64:
        return (128, 64, 8, 2) if masked or hiding else (128, 64, 4, 2)
    if wide <= 128:
        return (128, 64, 8, 2) if not masked else (64, 32, 8, 2) if hiding else (128, 32, 8, 2)
    return (32, 32, 8, 2) if hiding else (64, 32, 8, 2) if masked else (64, 32, 4, 2)


def _column_tiles(query: Tensor, dim: int, hiding: bool) -> tuple[int, int, int, int]:
    if query.dtype == torch.float32:
        return (64, 32, 4, 1) if dim <= 64 else (32, 16, 4, 1) if dim <= 128 else (16, 16, 8, 1)
    return (128, 64, 8 if hiding else 4, 2) if dim <= 64 else (64, 128, 4, 3) if dim <= 128 else (64, 32, 4, 2)


def _fitted(tiles: tuple[int, int, int, int], queries: int, keys: int) -> dict[str, int]:
    rows, columns, warps, stages = tiles
    return {"BM": _at_most(rows, queries), "BN": _at_most(columns, keys), "num_warps": warps, "num_stages": stages}


def _at_most(size: int, length: int) -> int:
    """Return a power of two: at least 16, which a product of tiles needs, and no larger than the length requires."""
    return max(16, min(size, 1 << (length - 1).bit_length()))
