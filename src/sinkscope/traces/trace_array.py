"""The tensors of a trace as arrays that are read from disk when they are indexed."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from sinkscope.axes import TRACE_AXES
from sinkscope.traces.format import DTYPES
from sinkscope.traces.part_files import Part, widen

_REDUCTIONS = ("all", "any", "argmax", "argmin", "max", "mean", "min", "std", "sum", "var")


class LazyArray(ABC):
    """An array that is read when it is indexed. NumPy's functions and reductions such as ``mean`` read all of it.

    Attributes:
        name: of the tensor.
        axes, shape, dtype: of the array; the first axis is the step.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def __getitem__(self, index: Any) -> np.ndarray: ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        sizes = " × ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
        return f"{type(self).__name__}({self.name}, {sizes})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, LazyArray):
            return self is other
        raise TypeError(f"to compare the numbers of {self.name}, load it first: trace.{self.name}[:] == …")

    __hash__ = object.__hash__

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _REDUCTIONS:
            return getattr(self[:], attribute)
        raise AttributeError(f"{type(self).__name__} has no {attribute!r}; load the tensor first: trace.tensor[:]")


class TraceArray(LazyArray):
    """One tensor of a trace, indexed as in NumPy's basic indexing.

    Raises:
        IndexError: an index beyond an axis.
    """

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
        # safetensors selects whole numbers along the axes before the last one, which may be shorter in a part; NumPy
        # does the rest.
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
    """Return an index as a tuple of at least one whole number or slice, without an ellipsis.

    Raises:
        IndexError: another index.
    """
    index = index if isinstance(index, tuple) else (index,)
    if (at := next((number for number, one in enumerate(index) if one is Ellipsis), None)) is not None:
        index = (*index[:at], *([slice(None)] * (len(axes) - len(index) + 1)), *index[at + 1 :])
    if len(index) > len(axes):
        raise IndexError(f"{name} has axes {', '.join(axes)}; found {len(index)} indices")
    if any(not isinstance(one, int | np.integer | slice) or isinstance(one, bool) for one in index):
        raise IndexError(
            f"{name} takes whole numbers and slices; for anything else load it first: trace.{name}[:][...]"
        )
    return index or (slice(None),)
