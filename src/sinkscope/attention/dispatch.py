"""Chooses the implementation of attention with column sums for a call. `Columns.path` and the manifest of a trace name it.

| path | where | what |
|---|---|---|
| ``sweep`` | CPU, and calls that the others cannot compute | blocks of queries, see `blockwise` |
| ``triton`` | CUDA with Triton | two kernels, see `fused` |
| ``flash``, ``cudnn`` | the same, without mask, hiding and prefix, where torch would use that kernel | torch's kernel, and one of ours |
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

from sinkscope.attention.blockwise import compute_blockwise
from sinkscope.attention.records import AttentionInputs, Columns, Hidden, Prefix, described, holds_nothing
from sinkscope.attention.scores import Workspace
from sinkscope.attention.subscriber_answers import check_prefix, read_hidden
from sinkscope.errors import CallError

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_SCALE = 1e6
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
        CallError: tensors whose shapes or dtypes do not fit each other.
        AttentionError: causal together with a mask, heads that do not divide, or hidden keys or a prefix that do not fit.
    """
    _check_tensors(query, key, value, groups, mask)
    if block is not None and block < 1:
        raise CallError(f"block: expected at least 1 query, found {block}")
    if scale is not None and not abs(scale) <= LARGEST_SCALE:
        raise CallError(f"scale: expected a finite number up to {LARGEST_SCALE:g}, found {scale}")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    hidden = () if hidden is None else read_hidden("hidden", hidden, query, key, key.shape[2])
    if prefix is not None:
        check_prefix("prefix", prefix, query, key, value)
    return compute(
        AttentionInputs(query, key, value, groups, scale, mask, causal, hidden, prefix),
        block=block,
        workspace=workspace,
    )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, groups: Tensor, mask: object) -> None:
    """Raise an error for tensors that do not fit each other.

    Raises:
        CallError: so it is.
    """
    for name, one in (("query", query), ("key", key), ("value", value), ("groups", groups)):
        axes = 3 if name == "groups" else 4
        if not isinstance(one, Tensor) or one.ndim != axes or not one.is_floating_point() or holds_nothing(one):
            raise CallError(f"{name}: expected numbers of {axes} axes, found {described(one)}")
        if not one.numel():
            raise CallError(f"{name}: expected at least one number on each axis, found {described(one)}")
    (batch, heads, queries, dim), (_, kv_heads, keys, _) = query.shape, key.shape
    for name, one, expected in (
        ("key", key, (batch, kv_heads, keys, dim)),
        ("value", value, (batch, kv_heads, keys, value.shape[-1])),
        ("groups", groups, (batch, groups.shape[1], queries)),
    ):
        if one.shape != expected:
            raise CallError(
                f"{name}: expected {list(expected)} beside a query of {list(query.shape)}, found {list(one.shape)}"
            )
    if groups.dtype != torch.float32:
        raise CallError(f"groups: expected float32, found {described(groups)}")
    if mask is None:
        return
    sizes = ((1, batch), (1, heads), (1, queries), (keys,))
    good = (
        isinstance(mask, Tensor)
        and mask.ndim == 4
        and (mask.dtype == torch.bool or mask.is_floating_point())
        and not holds_nothing(mask)
    )
    if (
        not isinstance(mask, Tensor)
        or not good
        or not all(size in allowed for size, allowed in zip(mask.shape, sizes, strict=True))
    ):
        raise CallError(
            f"mask: expected bool or numbers [1 or {batch}, 1 or {heads}, 1 or {queries}, {keys}] (batch, head, query, key), "
            f"found {described(mask)}"
        )


def compute(
    inputs: AttentionInputs, *, block: int | None = None, workspace: Workspace | None = None
) -> tuple[Tensor, Columns]:
    """Return attention output and column sums by the fastest implementation that supports the call.

    On a GPU the kernels compute every call except one that needs gradients, zeroes weights after the softmax, or hides different keys
    from different queries; such a call goes through the blockwise pass.
    """
    if (
        kernels_take(inputs.query, inputs.key, inputs.value)
        and not inputs.needs_gradient
        and hides_whole_keys(inputs.hidden)
    ):
        with without_autocast(inputs.query.device.type):
            found = compute_by_kernels(inputs)
        if found is not None:
            return found
    return compute_blockwise(inputs, block=block, workspace=workspace)


def compute_by_kernels(inputs: AttentionInputs) -> tuple[Tensor, Columns] | None:
    """Return output and column sums by Triton's kernels; None where they cannot be compiled or launched."""
    query, wide = inputs.query, max(inputs.query.shape[-1], inputs.value.shape[-1])
    more = ("" if inputs.mask is None else " behind a mask") + (" with hidden keys" if inputs.hidden else "")
    return _by_kernels(query, wide, more, lambda fused: fused.compute_fused(inputs))


def norms_by_kernel(
    key: Tensor, value: Tensor, projection: Tensor | None, newest: int
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return `fused.compute_norms`; None where the kernel does not support the tensors, or cannot be compiled or launched."""
    if not kernels_take(key, key, value):
        return None
    wide = max(key.shape[-1], value.shape[-1])
    return _by_kernels(key, wide, OF_NORMS, lambda fused: fused.compute_norms(key, value, projection, newest))


def _by_kernels(tensor: Tensor, wide: int, what: str, run: Callable[[Any], Found]) -> Found | None:
    """Return what kernels compute; a failure is warned of once for each device, dtype, head size and kind of call, and not tried again."""
    kind = (str(tensor.device), str(tensor.dtype).removeprefix("torch."), wide, what)
    if kind in _given_up:
        return None
    try:
        from sinkscope.attention import fused  # Triton may be missing
    except ImportError as error:
        _give_up(*kind, error)
        return None
    try:
        return run(fused)
    except fused.KernelError as error:
        _give_up(*kind, error)
        return None


_given_up: set[tuple[str, str, int, str]] = set()
"""Calls that cannot be compiled or launched: device, dtype, head size, and what they do besides."""


def _give_up(device: str, dtype: str, dim: int, what: str, error: Exception) -> None:
    _given_up.add((device, dtype, dim, what))
    slower = "torch's slower operations run" if what == OF_NORMS else BLOCKWISE
    _warn(
        f"expected to run with head size {dim} in {dtype}{what} on {device}, found that it does not ({error})", slower
    )


def without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context without autocast; entering torch's costs more than a layer's other work on the host."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


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


def _warn(what: str, slower: str = BLOCKWISE) -> None:
    warnings.warn(f"sinkscope's Triton attention: {what}; {slower} instead", RuntimeWarning, stacklevel=5)
