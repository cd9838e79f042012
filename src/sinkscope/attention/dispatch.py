"""Chooses the implementation of attention with column sums for a call. `Columns.path` and the manifest of a trace name it.

| path | where | what |
|---|---|---|
| ``sweep`` | CPU, and calls that the others cannot compute | blocks of queries, see `blockwise` |
| ``triton`` | CUDA with Triton | two kernels, see `fused` |
| ``flash`` | the same, without mask, hiding and prefix, where torch's flash attention supports the heads | torch's kernel and one of ours |
"""

import math
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from sinkscope.attention.blockwise import compute_blockwise
from sinkscope.attention.records import AttentionInputs, Columns, Hidden, Prefix
from sinkscope.attention.scores import Workspace

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # the largest head size of the kernels
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
    workspace: Workspace | None = None,
) -> tuple[Float[Tensor, "batch head query value_dim"], Columns]:
    """Return attention output and column sums.

    Args:
        groups: weight of each query in each group's sums: 1 for members, 0 for others and for padding.
        scale: factor on the scores; 1/√dim when None.
        mask: [1 or batch, 1 or head, 1 or query, key], boolean (True is visible) or additive.
        causal: query i sees keys 0…i (upper-left, as sdpa has it); only without a mask.
        hidden: keys taken away before the softmax, or any number of `Hidden`. A query that would lose its last
            visible key keeps all of them.
        prefix: constant keys in front.
        block: queries per block of the blockwise pass, 512 when None.
        workspace: memory for its scores, kept from call to call.

    Raises:
        AttentionError: causal together with a mask, or heads that do not divide.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    hidden = [Hidden(hidden[:, :, None])] if isinstance(hidden, Tensor) else hidden or ()
    return compute(AttentionInputs(query, key, value, groups, scale, mask, causal, hidden, prefix), block=block, workspace=workspace)


def compute(inputs: AttentionInputs, *, block: int | None = None, workspace: Workspace | None = None) -> tuple[Tensor, Columns]:
    """Return attention output and column sums by the fastest implementation that supports the call.

    On a GPU the kernels compute every call except one that needs gradients, zeroes weights after the softmax, or hides different keys
    from different queries; such a call goes through the blockwise pass.
    """
    if kernels_take(inputs.query, inputs.key, inputs.value) and not inputs.needs_gradient and hides_whole_keys(inputs.hidden):
        with torch.autocast(inputs.query.device.type, enabled=False):
            found = compute_by_kernels(inputs)
        if found is not None:
            return found
    return compute_blockwise(inputs, block=block, workspace=workspace)


def compute_by_kernels(inputs: AttentionInputs) -> tuple[Tensor, Columns] | None:
    """Return output and column sums by Triton's kernels; None where they cannot be compiled or launched.

    A failure is warned of once for each device, dtype and head size, and not tried again.
    """
    query, wide = inputs.query, max(inputs.query.shape[-1], inputs.value.shape[-1])
    kind = (str(query.device), str(query.dtype).removeprefix("torch."), wide, inputs.mask is None, not inputs.hidden)
    if kind in _given_up:
        return None
    try:
        from sinkscope.attention.fused import KernelError, compute_fused  # Triton may be missing
    except ImportError as error:
        _give_up(*kind, error)
        return None
    try:
        return compute_fused(inputs)
    except KernelError as error:
        _give_up(*kind, error)
        return None


_given_up: set[tuple[str, str, int, bool, bool]] = set()
"""Calls that cannot be compiled or launched: device, dtype, head size, and whether they have no mask and no hidden keys."""


def _give_up(device: str, dtype: str, dim: int, bare: bool, whole: bool, error: Exception) -> None:
    _given_up.add((device, dtype, dim, bare, whole))
    more = ("" if bare else " behind a mask") + ("" if whole else " with hidden keys")
    _warn(f"expected to run with head size {dim} in {dtype}{more} on {device}, found that it does not ({error})")


def kernels_take(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernels support such tensors; on a GPU, warn once if not."""
    if not query.is_cuda:
        return False
    if not has_triton():
        _warn_once("expected Triton on a GPU, found none (pip install triton)")
        return False
    wide = max(query.shape[-1], value.shape[-1])
    if query.dtype not in TAKEN or not query.dtype == key.dtype == value.dtype:
        names = sorted({str(one.dtype).removeprefix("torch.") for one in (query, key, value)})
        _warn_once(f"{REFUSAL} dtype {' and '.join(names)}")
        return False
    if wide > WIDEST:
        _warn_once(f"{REFUSAL} head size {wide}")
        return False
    return True


def hides_whole_keys(hidden: Sequence[Hidden]) -> bool:
    """Return whether all queries of a head lose the same keys before the softmax, the only hiding that the kernels support."""
    return not any(one.zeroed or one.front or one.queries is not None or one.keys.shape[2] != 1 for one in hidden)


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def _warn_once(what: str) -> None:
    _warn(what)


def _warn(what: str) -> None:
    warnings.warn(f"sinkscope's Triton attention: {what}; the slower blockwise pass runs instead", RuntimeWarning, stacklevel=5)
