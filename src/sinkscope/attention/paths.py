"""Which implementation of `attend` a call takes.

| path | where | what |
|---|---|---|
| ``sweep`` | CPU, and whatever the others do not take | blocks of queries, see `sweep` |
| ``triton`` | CUDA with Triton | two kernels, see `fused` |
| ``flash`` | the same, without mask, hiding and prefix, where torch's flash attention takes the heads | torch's kernel and one of ours |

`Columns.path` says which one ran.
"""

import contextlib
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from sinkscope.attention.hidden import Hidden
from sinkscope.attention.sweep import Columns, Prefix, Workspace
from sinkscope.attention.sweep import attend as attend_by_sweep
from sinkscope.errors import AttentionError

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256
"""The largest head that the kernels take."""
REFUSAL = f"expected heads of at most {WIDEST} in {', '.join(str(one).removeprefix('torch.') for one in TAKEN)}, found"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    groups: Tensor,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    hidden: Tensor | Sequence[Hidden] | None = None,
    prefix: Prefix | None = None,
    block: int | None = None,
    workspace: Workspace | None = None,
) -> tuple[Tensor, Columns]:
    """Attention output and column sums; arguments and numbers are those of `sweep.attend`.

    On a GPU the kernels take every call but one that needs gradients, zeroes weights after the softmax, or hides
    different keys from different queries; such a call goes through the sweep.
    """
    if kernels_take(query, key, value) and not _needs_gradients(query, key, value, prefix):
        _check(query, key, mask, causal)
        with contextlib.suppress(_NoBitmap), torch.autocast(query.device.type, enabled=False):
            return attend_by_kernels(query, key, value, groups, scale, mask, causal, _bitmap(hidden, query.device), prefix)
    more = {"hidden": hidden, "prefix": prefix, "block": block, "workspace": workspace}
    return attend_by_sweep(query, key, value, groups=groups, scale=scale, mask=mask, causal=causal, **more)


def attend_by_kernels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Tensor,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    hidden: Tensor | None,
    prefix: Prefix | None,
) -> tuple[Tensor, Columns]:
    """The same by Triton's kernels, or by the sweep where they cannot run; ``hidden`` is bool [1 or batch, 1 or head, key].

    What cannot run for heads of a kind on a device is told once and not tried again.
    """
    kind = (str(query.device), str(query.dtype).removeprefix("torch."), max(query.shape[-1], value.shape[-1]), mask is None, hidden is None)
    if kind not in _given_up:
        try:
            from sinkscope.attention.fused import NoKernel, attend_fused
        except ImportError as error:
            _give_up(*kind, error)
        else:
            try:
                return attend_fused(query, key, value, groups, scale, mask, causal, hidden, prefix)
            except NoKernel as error:
                _give_up(*kind, error)
    return attend_by_sweep(query, key, value, groups=groups, scale=scale, mask=mask, causal=causal, hidden=hidden, prefix=prefix)


_given_up: set[tuple[str, str, int, bool, bool]] = set()
"""Device, dtype and head size of what cannot run, and whether without a mask and without hidden keys."""


def _give_up(device: str, dtype: str, dim: int, bare: bool, whole: bool, error: Exception) -> None:
    _given_up.add((device, dtype, dim, bare, whole))
    more = ("" if bare else " behind a mask") + ("" if whole else " with hidden keys")
    warnings.warn(
        f"sinkscope's Triton attention does not run with head size {dim} in {dtype}{more} on {device}; "
        f"the slower sweep runs instead ({error})",
        RuntimeWarning,
        stacklevel=4,
    )


def kernels_take(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernels take attention of such tensors; warns once of a dtype or head size on a GPU that keeps it from them."""
    if not query.is_cuda:
        return False
    if not has_triton():
        _warn_once("expected Triton on a GPU, found none (pip install triton)")
        return False
    wide = max(query.shape[-1], value.shape[-1])
    if query.dtype not in TAKEN or not query.dtype == key.dtype == value.dtype:
        _warn_once(f"{REFUSAL} dtype {' and '.join(sorted({str(one.dtype).removeprefix('torch.') for one in (query, key, value)}))}")
        return False
    if wide > WIDEST:
        _warn_once(f"{REFUSAL} head size {wide}")
        return False
    return True


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def _warn_once(what: str) -> None:
    warnings.warn(f"sinkscope's Triton attention: {what}; the slower sweep runs instead", RuntimeWarning, stacklevel=4)


def _check(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> None:
    if causal and mask is not None:
        raise AttentionError("expected either a mask or causal=True, found both; fold causality into the mask")
    if query.shape[1] % key.shape[1]:
        raise AttentionError(f"expected query heads to be a multiple of key heads, found {query.shape[1]} and {key.shape[1]}")


def _bitmap(hidden: Tensor | Sequence[Hidden] | None, device: torch.device) -> Tensor | None:
    """Hidden keys as bool [1 or batch, 1 or head, key]; None where nothing is hidden.

    Raises:
        _NoBitmap: queries lose different keys, or weights become 0 after the softmax.
    """
    if hidden is None or isinstance(hidden, Tensor):
        return None if hidden is None else hidden.to(device)
    if any(one.zeroed or one.front or one.queries is not None or one.keys.shape[2] != 1 for one in hidden):
        raise _NoBitmap
    union = hidden[0].keys[:, :, 0].to(device)
    for one in hidden[1:]:
        union = union | one.keys[:, :, 0].to(device)
    return union


class _NoBitmap(Exception):
    """What is hidden is no bitmap."""


def _needs_gradients(query: Tensor, key: Tensor, value: Tensor, prefix: Prefix | None) -> bool:
    constants = () if prefix is None else (prefix.keys, prefix.values, prefix.logits)
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (query, key, value, *constants))
