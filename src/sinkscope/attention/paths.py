"""Which implementation of `attend` a call takes.

| path | where | what |
|---|---|---|
| ``sweep`` | CPU, and whatever the others do not take | blocks of queries, see `sweep` |
| ``triton`` | CUDA with Triton | two kernels, see `fused` |
| ``flash`` | the same, without mask, hiding and prefix, where torch's flash attention takes the heads | torch's kernel and one of ours |
| ``exchanged`` | CUDA without Triton | torch's fused attention, see `exchanged` |

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
from sinkscope.attention.no_kernel import NoKernel
from sinkscope.attention.sweep import Columns, Path, Prefix, Workspace
from sinkscope.attention.sweep import attend as attend_by_sweep
from sinkscope.errors import AttentionError

TAKEN = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256
"""The largest head that the kernels take."""


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

    On a GPU the fused paths take every call but one that needs gradients, zeroes weights after the softmax, or hides
    different keys from different queries; such a call goes through the sweep.
    """
    path = path_of(query, key, value)
    if path != "sweep" and not _needs_gradients(query, key, value, prefix):
        _check(query, key, mask, causal)
        with contextlib.suppress(_NoBitmap), torch.autocast(query.device.type, enabled=False):
            return attend_fused_by(path, query, key, value, groups, scale, mask, causal, _bitmap(hidden, query.device), prefix)
    more = {"hidden": hidden, "prefix": prefix, "block": block, "workspace": workspace}
    return attend_by_sweep(query, key, value, groups=groups, scale=scale, mask=mask, causal=causal, **more)


def attend_fused_by(
    path: Path,
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
    """The same by one of the fused paths, or by the next slower one that can; ``hidden`` is bool [1 or batch, 1 or head, key].

    What cannot run for heads of a kind on a device is told once and not tried again.
    """
    kind = (str(query.device), str(query.dtype).removeprefix("torch."), max(query.shape[-1], value.shape[-1]), mask is None, hidden is None)
    if path == "triton" and ("triton", *kind) not in _given_up:
        try:
            from sinkscope.attention.fused import attend_fused

            return attend_fused(query, key, value, groups, scale, mask, causal, hidden, prefix)
        except (NoKernel, ImportError) as error:
            _give_up("triton", *kind, error)
    exchangeable = prefix is None and (hidden is None or (mask is None and not causal))  # no row is left with nothing to see
    if exchangeable and ("exchanged", *kind) not in _given_up:
        try:
            from sinkscope.attention.exchanged import attend_exchanged

            return attend_exchanged(query, key, value, groups, scale, mask, causal, hidden)
        except NoKernel as error:
            _give_up("exchanged", *kind, error)
    return attend_by_sweep(query, key, value, groups=groups, scale=scale, mask=mask, causal=causal, hidden=hidden, prefix=prefix)


_given_up: set[tuple[str, str, str, int, bool, bool]] = set()
"""Path, device, dtype and head size of what cannot run, and whether without a mask and without hidden keys."""


def _give_up(path: str, device: str, dtype: str, dim: int, bare: bool, whole: bool, error: Exception) -> None:
    _given_up.add((path, device, dtype, dim, bare, whole))
    more = ("" if bare else " behind a mask") + ("" if whole else " with hidden keys")
    warnings.warn(
        f"sinkscope's {path} attention does not run with head size {dim} in {dtype}{more} on {device}; a slower one runs instead ({error})",
        RuntimeWarning,
        stacklevel=4,
    )


def path_of(query: Tensor, key: Tensor, value: Tensor) -> Path:
    """The path that attention of such tensors takes; warns once of a dtype or head size that keeps it from the fused ones."""
    if not query.is_cuda:
        return "sweep"
    wide = max(query.shape[-1], value.shape[-1])
    if query.dtype not in TAKEN or not query.dtype == key.dtype == value.dtype:
        _warn_once(f"dtype {' and '.join(sorted({str(one.dtype).removeprefix('torch.') for one in (query, key, value)}))}")
        return "sweep"
    if wide > WIDEST:
        _warn_once(f"head size {wide}")
        return "sweep"
    return "triton" if has_triton() else "exchanged"


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def _warn_once(what: str) -> None:
    names = ", ".join(str(one).removeprefix("torch.") for one in TAKEN)
    warnings.warn(
        f"sinkscope's fused attention does not take {what} (it takes heads of at most {WIDEST} in {names}); the slower sweep runs instead",
        RuntimeWarning,
        stacklevel=4,
    )


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
