"""Chooses the implementation of attention with column sums for a call; `Columns.path` and traces name it.

| path | where | what |
|---|---|---|
| ``sweep`` | CPU, and calls that the others cannot compute | blocks of queries, see `blockwise` |
| ``triton`` | CUDA with Triton | two kernels, see `fused` |
| ``flash``, ``cudnn`` | the same without mask, hiding and prefix, where torch uses it | torch's kernel, and ours |
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from sinkscope.attention.blockwise import KeptBias, compute_blockwise
from sinkscope.attention.records import AttentionInputs, Columns, Hidden, KernelError, Prefix
from sinkscope.errors import AttentionError

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # the largest head size of the kernels
Found = TypeVar("Found")
OF_NORMS = " for norms"
BLOCKWISE = "the slower blockwise pass runs"
REFUSAL = f"expected heads of at most {WIDEST} in {', '.join(str(one).removeprefix('torch.') for one in TAKEN)}, found"


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
    kept_bias: KeptBias | None = None,
) -> tuple[Float[Tensor, "batch head query value_dim"], Columns]:
    """Return attention output and column sums.

    Args:
        groups: weight of each query in each group's sums: 1 for members, 0 for others and for padding.
        scale: factor on the scores; 1/√dim when None.
        mask: [1 or batch, 1 or head, 1 or query, key], boolean (True is visible) or additive.
        causal: query i sees keys 0…i (upper-left, as sdpa has it); only without a mask.
        hidden: keys taken away before the softmax, or several `Hidden`; a query that would lose all it sees keeps all.
        prefix: constant keys in front.
        block: queries per block of the blockwise pass, 512 when None.
        kept_bias: of the mask, for the calls that share it.
    """
    if causal and mask is not None:
        raise AttentionError("expected either a mask or causal=True, found both; fold causality into the mask")
    check_heads(query, key)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    taken = [Hidden(hidden[:, :, None])] if isinstance(hidden, Tensor) else hidden or ()
    inputs = AttentionInputs(query, key, value, groups, scale, mask, causal, taken, prefix)
    return compute(inputs, block=block, kept_bias=kept_bias)


def check_heads(query: Tensor, key: Tensor) -> None:
    """Raise AttentionError for query heads that key heads cannot share equally; some would be left out."""
    if query.shape[1] % key.shape[1]:
        raise AttentionError(f"expected key heads to divide query heads, found {key.shape[1]} and {query.shape[1]}")


def compute(
    inputs: AttentionInputs, *, block: int | None = None, kept_bias: KeptBias | None = None
) -> tuple[Tensor, Columns]:
    """Return attention output and column sums by the fastest implementation that supports the call."""
    if kernels_take(inputs.query, inputs.key, inputs.value) and not inputs.needs_gradient:
        whole_keys = not any(
            one.zeroed or one.front or one.queries is not None or one.keys.shape[2] != 1 for one in inputs.hidden
        )
        with without_autocast(inputs.query.device.type):
            found = compute_by_kernels(inputs) if whole_keys else None
        if found is not None:
            return found
    return compute_blockwise(inputs, block=block, kept_bias=kept_bias)


def compute_by_kernels(inputs: AttentionInputs) -> tuple[Tensor, Columns] | None:
    """Return output and column sums by Triton's kernels; None where they cannot be compiled or launched."""
    query, wide = inputs.query, max(inputs.query.shape[-1], inputs.value.shape[-1])
    more = ("" if inputs.mask is None else " behind a mask") + (" with hidden keys" if inputs.hidden else "")
    return _by_kernels(query, wide, more, lambda fused: fused.compute_fused(inputs))


def norms_by_kernel(
    key: Tensor, value: Tensor, projection: Tensor | None, newest: int
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return `fused.compute_norms`; None where the kernel does not support the tensors, or cannot run here."""
    if not kernels_take(key, key, value):
        return None
    wide = max(key.shape[-1], value.shape[-1])
    return _by_kernels(key, wide, OF_NORMS, lambda fused: fused.compute_norms(key, value, projection, newest))


def _by_kernels(tensor: Tensor, wide: int, what: str, run: Callable[[Any], Found]) -> Found | None:
    device, dtype = str(tensor.device), str(tensor.dtype).removeprefix("torch.")
    if (device, dtype, wide, what) in _given_up:
        return None
    try:
        from sinkscope.attention import fused  # Triton may be missing

        return run(fused)
    except (ImportError, KernelError) as error:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise  # it is the capture's fault
        _given_up.add((device, dtype, wide, what))
        failed = f"expected to run with head size {wide} in {dtype}{what} on {device}, found that it does not ({error})"
        _warn_once(failed, "torch's slower operations run" if what == OF_NORMS else BLOCKWISE)
        return None


_given_up: set[tuple[str, str, int, str]] = set()
"""Calls that cannot be compiled or launched: device, dtype, head size, and further words."""


def without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context without autocast; entering torch's costs more than a layer's other work on the host."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def kernels_take(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernels support such tensors; on a GPU, warn once if not."""
    if not query.is_cuda:
        return False
    wide, dtypes = max(query.shape[-1], value.shape[-1]), {query.dtype, key.dtype, value.dtype}
    if not has_triton():
        _warn_once("expected Triton on a GPU, found none (pip install triton)")
    elif query.dtype not in TAKEN or len(dtypes) > 1:
        _warn_once(f"{REFUSAL} dtype {' and '.join(sorted(str(one).removeprefix('torch.') for one in dtypes))}")
    elif wide > WIDEST:
        _warn_once(f"{REFUSAL} head size {wide}")
    else:
        return True
    return False


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def _warn_once(what: str, slower: str = BLOCKWISE) -> None:
    warnings.warn(f"sinkscope's Triton attention: {what}; {slower} instead", RuntimeWarning, stacklevel=5)


def attend_behind(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix: Prefix,
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Return attention output of a network with constant keys, [batch, head, query, dim], without column sums."""
    count, shared = prefix.count, query.shape[1] > key.shape[1]
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril_()
    if mask is not None:
        mask = pad(mask, (count, 0), value=True if mask.dtype == torch.bool else 0.0)
    keys, values = _behind(prefix.keys, key, count), _behind(prefix.values, value, count)
    if prefix.logits is not None:  # as a bias on keys of 0
        bias = pad(prefix.logits[None, :, None].to(query), (0, key.shape[2]))
        if mask is not None:
            seen = mask.dtype == torch.bool
            bias = bias.masked_fill(~mask, -math.inf) if seen else (bias + mask).to(query.dtype)
        mask = bias
    if shared and query.is_cuda and mask is not None:  # a GPU's fused kernels take a mask or groups, not both
        keys, values = (one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (keys, values))
        shared = False
    return scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=shared
    )


def _behind(constant: Tensor | None, tensor: Tensor, count: int) -> Tensor:
    """Return keys or values [batch, kv_head, count + key, dim] with the constant ones, or zeros, in front."""
    if constant is None:
        return pad(tensor, (0, 0, count, 0))
    front = (constant if constant.ndim == 4 else constant[None]).to(tensor)
    return torch.cat([front.expand(len(tensor), -1, -1, -1), tensor], dim=2)
