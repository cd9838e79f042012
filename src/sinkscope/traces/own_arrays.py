"""Checks the arrays of a caller before a step of them is written, counted or analysed; those of a recorder need no such check."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sinkscope.argument_types import in_words
from sinkscope.axes import HEAD, KEY, KV_HEAD, LAYER, POSITION, TRACE_AXES
from sinkscope.errors import CallError
from sinkscope.traces.part_checks import WIDEST, wrong_values

BEHIND = ("written", "predicted", "confidence")
"""Tensors that may tell of positions behind the canvas, where autoregressive models write."""
WHOLE = tuple(
    name for name in TRACE_AXES if name.endswith("_key") or name in ("tokens", "written", "predicted", "lengths")
)
FOLLOWED = ("last_query", "newest_columns")
"""Where sinks are followed, so that nothing may be missing."""


def checked_step(
    where: str,
    arrays: Mapping[str, Any],
    sizes: dict[str, int],
    names: Iterable[str] = TRACE_AXES,
    within: bool = False,
) -> dict[str, np.ndarray]:
    """Return the tensors of a step as arrays, checked; they are not copied.

    Args:
        where: begins the messages.
        arrays: as in `axes.TRACE_AXES`, without the step axis; None is left out.
        sizes: {axis: its size} in the steps before; those of this one are added.
        names: of the tensors that are looked at.
        within: whether the queries are the canvas' own, so that no column has more than these.

    Raises:
        CallError: arrays of other axes, sizes or types, or values that cannot be.
    """
    known, found = dict(sizes), {}
    length = _length(where, arrays)
    for name in names:
        if (value := arrays.get(name)) is None:
            continue
        array = readable(f"{where}{name}", value)
        _check_kind(f"{where}{name}", name, array)
        _check_shape(f"{where}{name}", name, array, length, known)
        _check_values(f"{where}{name}", name, array, length if within and length else WIDEST)
        found[name] = array
    sizes |= known
    return found


def _length(where: str, arrays: Mapping[str, Any]) -> int | None:
    """Return how many tokens the canvas has, None where nothing says so."""
    name = next((one for one in ("tokens", "lengths", "column_sums") if arrays.get(one) is not None), None)
    if name is None:
        return None
    array = readable(f"{where}{name}", arrays[name])
    _check_kind(f"{where}{name}", name, array)
    return int(array) if name == "lengths" and not array.ndim else array.shape[-1] if array.ndim else None


def readable(what: str, value: Any) -> np.ndarray:
    """Return what NumPy reads of a caller's array.

    Raises:
        CallError: it cannot, or its values are masked.
    """
    if np.ma.is_masked(value):
        raise CallError(
            f"{what}: expected an array without a mask, found values that are masked; cut them off, or write NaN there"
        )
    try:
        readable = value is not None and not isinstance(value, list | tuple | str | bytes)
        array = np.asarray(value if readable else None)
    except (TypeError, ValueError, RuntimeError):  # such as tensors of torch with bfloat16 or gradients
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise CallError(f"{what}: expected an array of numbers, found {in_words(value)}")
    return array


def _check_kind(what: str, name: str, array: np.ndarray) -> None:
    kinds, expected = (
        ("biu", "0 or 1") if name == "masked" else ("iu", "whole numbers") if name in WHOLE else ("fiu", "numbers")
    )
    if array.dtype.kind not in kinds:
        raise CallError(f"{what}: expected {expected}, found {in_words(array)}")


def _check_shape(what: str, name: str, array: np.ndarray, length: int | None, known: dict[str, int]) -> None:
    """Raise CallError for an array of other axes than a tensor has; note the sizes of those that all tensors share."""
    axes = TRACE_AXES[name][1:]
    good = array.ndim == len(axes) and 0 not in array.shape
    for axis, size in zip(axes, array.shape, strict=False):
        if axis in (KEY, POSITION) and length is not None:
            good &= size >= length if name in BEHIND else size == length
        elif axis in (LAYER, HEAD, KV_HEAD):
            good &= known.setdefault(axis, size) == size
    if not good:
        sizes = dict.fromkeys((KEY, POSITION), length) | (known if array.ndim == len(axes) else {})
        expected = ", ".join(f"{axis} {sizes[axis]}" if sizes.get(axis) else axis for axis in axes)
        raise CallError(f"{what}: expected [{expected}], found {list(array.shape)}")


def _check_values(what: str, name: str, array: np.ndarray, queries: int) -> None:
    if name == "tokens":
        wrong: Iterable[tuple[np.ndarray, str]] = [(array[array < 0], "token ids from 0 upwards")]
    elif name in FOLLOWED:
        wrong = [(array[np.isnan(array)], "sums of attention"), *wrong_values(name, array, None, queries)]
    else:
        wrong = wrong_values(name, array, None, queries)
    for values, expected in wrong:
        if values.size:
            raise CallError(f"{what}: expected {expected}, found {values.flat[0]}")
