"""The tensors of a trace as arrays that are read when they are indexed, and traces of the largest columns only."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from sinkscope.axes import KEY, TRACE_AXES
from sinkscope.traces.format import DTYPES, Part, widen

_REDUCTIONS = ("all", "any", "argmax", "argmin", "max", "mean", "min", "std", "sum", "var")


class LazyArray(ABC):
    """An array ``name`` with ``axes``, ``shape`` and ``dtype`` (the first axis is the step) that is read when it is
    indexed; NumPy's functions and reductions such as ``mean`` read all of it.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def __getitem__(self, index: Any) -> np.ndarray: ...

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        sizes = " × ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
        return f"{type(self).__name__}({self.name}, {sizes})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __eq__(self, other: object) -> Any:
        return self is other if other is None or isinstance(other, LazyArray) else self[:] == other

    __hash__ = object.__hash__

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _REDUCTIONS:
            return getattr(self[:], attribute)
        raise AttributeError(f"{type(self).__name__} has no {attribute!r}; load the tensor first: trace.tensor[:]")


class TraceArray(LazyArray):
    """One tensor of a trace, with NumPy's basic indexing; raises IndexError beyond an axis."""

    def __init__(self, name: str, parts: tuple[Part, ...]) -> None:
        self.name, self._parts = name, parts
        shapes = [part.shapes[name] for part in parts]
        self.axes = TRACE_AXES[name]
        rest = tuple(max(sizes) for sizes in zip(*(shape[1:] for shape in shapes), strict=True))
        self.shape = (sum(part.steps for part in parts), *rest)
        stored = DTYPES[parts[0].dtypes[name]]
        self.dtype = np.dtype(np.float32) if stored == np.float16 else stored

    def __getitem__(self, index: Any) -> np.ndarray:
        step, *rest = full_index(index, self.name, self.axes)
        for axis, size, one in zip(self.axes, self.shape, (step, *rest), strict=False):
            if isinstance(one, int | np.integer) and not -size <= one < size:
                raise IndexError(f"{axis} {one} is out of range: {self.name} has {size}")
        if isinstance(step, int | np.integer):
            number = int(step) % len(self)
            return self._read(number, number + 1, rest)[0]
        start, stop, stride = step.indices(len(self))
        if stride < 0:
            return self[:][(step, *rest)]
        return self._read(start, max(start, stop), rest)[::stride]

    def _read(self, start: int, stop: int, rest: list[Any]) -> np.ndarray:
        """Return the steps from ``start`` to ``stop`` − 1, with their axis."""
        # The last axis may be shorter in a part: NumPy selects along it, safetensors whole numbers along the others.
        pairs = list(zip(rest, self.shape[1:-1], strict=False))
        leading = [slice(None) if isinstance(one, slice) else int(one) % size for one, size in pairs]
        pieces = []
        for part in self._parts:
            first, last = max(start, part.first_step), min(stop, part.first_step + part.steps)
            if first < last:
                piece = part.read(self.name, (slice(first - part.first_step, last - part.first_step), *leading))
                pieces.append(piece if self.ndim == 1 else widen(self.name, piece, self.shape[-1]))
        if not pieces:
            kept = [size for (one, size) in pairs if isinstance(one, slice)]
            pieces = [np.zeros((0, *kept, *self.shape[1 + len(pairs) :]), self.dtype)]
        pending = [one for number, one in enumerate(rest) if number >= len(leading) or isinstance(one, slice)]
        return np.concatenate(pieces)[(slice(None), *pending)]


def full_index(index: Any, name: str, axes: tuple[str, ...]) -> tuple[Any, ...]:
    """Return an index as a tuple of at least one whole number or slice, without an ellipsis; raise IndexError else."""
    index = index if isinstance(index, tuple) else (index,)
    if (at := next((number for number, one in enumerate(index) if one is Ellipsis), None)) is not None:
        index = (*index[:at], *([slice(None)] * (len(axes) - len(index) + 1)), *index[at + 1 :])
    if len(index) > len(axes) or any(not isinstance(one, int | np.integer | slice) for one in index):
        takes = f"takes whole numbers and slices of {', '.join(axes)}"
        raise IndexError(f"{name} {takes}; for anything else load it first: trace.{name}[:][...]")
    return index or (slice(None),)


def kept_columns(trace: Any, name: str = "column_sums") -> Any:
    """Return columns as they were kept: all of them, or the largest with NaN at all others."""
    return getattr(trace, name) if name in trace.tensors else TopArray(name, trace, spread=False)


class TopArray(LazyArray):
    """Columns of which only the largest were kept; all others have their mean, so that Eq. 3 is exact for the keys that
    were kept. ``spread=False`` leaves NaN there.
    """

    def __init__(self, name: str, trace: Any, spread: bool = True) -> None:
        self.name, self.spread = name, spread
        self._values, self._keys, self._rest = (
            getattr(trace, one) for one in (f"top_{name}", f"top_{name}_key", f"rest_{name}")
        )
        self._lengths = trace.lengths[:]
        self.axes = (*TRACE_AXES[name][:-1], KEY)
        self.shape = (*self._values.shape[:-1], int(self._lengths.max(initial=0)))
        self.dtype = self._values.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        index = full_index(index, self.name, self.axes)
        leading, width = index[:3], self.shape[-1]
        keys, rest, lengths = self._keys[leading], self._rest[leading], np.asarray(self._lengths[index[0]])
        fill = rest if self.spread else np.full_like(rest, np.nan)
        whole = np.repeat(fill[..., None], width + 1, axis=-1)
        places = np.where(keys < 0, width, keys).astype(np.intp)  # empty places go behind the end
        np.put_along_axis(whole, places, self._values[leading], axis=-1)
        whole = whole[..., :width]
        lengths = lengths.reshape((*lengths.shape, *[1] * (whole.ndim - lengths.ndim)))
        whole[np.broadcast_to(np.arange(width) >= lengths, whole.shape)] = np.nan
        return whole[(..., *index[3:])]
