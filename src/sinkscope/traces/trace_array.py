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

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        sizes = " × ".join(f"{axis} {size}" for axis, size in zip(self.axes, self.shape, strict=True))
        return f"{type(self).__name__}({self.name}, {sizes})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.name} is read from files, which makes an array of its own; leave copy=False out")
        array = self[:]
        return array if dtype is None else array.astype(dtype)

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, LazyArray):
            return self is other
        raise TypeError(
            f"{self.name} is read when it is indexed; to compare its numbers load it first: trace.{self.name}[:] == …"
        )

    __hash__ = object.__hash__

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _REDUCTIONS:
            return getattr(self[:], attribute)
        if attribute.startswith("_") or not hasattr(np.ndarray, attribute):
            raise AttributeError(f"{type(self).__name__} has no {attribute!r}")
        name = self.__dict__.get("name", "it")
        raise AttributeError(
            f"{name} is read when it is indexed; for .{attribute} load it first: trace.{name}[:].{attribute}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_REDUCTIONS})


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
        index = full_index(index, self.name, self.axes)
        step, rest = index[0], index[1:]
        for axis, size, one in zip(self.axes[1:], self.shape[1:], rest, strict=False):
            if isinstance(one, int | np.integer) and not -size <= one < size:
                raise IndexError(f"{axis} {one} is out of range: {self.name} has {size}")
        if isinstance(step, int | np.integer):
            number = int(step) + (len(self) if step < 0 else 0)
            if not 0 <= number < len(self):
                raise IndexError(f"step {step} is out of range: the trace has {len(self)}")
            return self._read(number, number + 1, rest)[0]
        start, stop, stride = step.indices(len(self))
        if stride < 0:
            return self[:][index]
        return self._read(start, max(start, stop), rest)[::stride]

    def _read(self, start: int, stop: int, rest: tuple[Any, ...]) -> np.ndarray:
        """Return the steps from ``start`` to ``stop`` − 1, with their axis."""
        rest = tuple(int(one) if isinstance(one, np.integer) else one for one in rest)
        # safetensors slices the axes before the last one that are ints or plain slices; NumPy does the rest.
        leading: list[Any] = []
        for one, size in zip(rest, self.shape[1:-1], strict=False):
            leading.append(
                one + size if isinstance(one, int) and one < 0 else one if isinstance(one, int) else slice(None)
            )
        pieces = []
        for part in self._parts:
            first, last = max(start, part.first_step), min(stop, part.first_step + part.steps)
            if first < last:
                here = slice(first - part.first_step, last - part.first_step)
                pieces.append(part.read(self.name, (here, *leading)))
        if len(self.shape) == 1:
            return np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        kept = [
            size
            for size, one in zip(self.shape[1:], (*leading, *[slice(None)] * len(self.shape)), strict=False)
            if not isinstance(one, int)
        ]
        whole = (
            np.concatenate([widen(self.name, piece, self.shape[-1]) for piece in pieces])
            if pieces
            else np.zeros((0, *kept), self.dtype)
        )
        pending = [
            one for number, one in enumerate(rest) if number >= len(leading) or not isinstance(leading[number], int)
        ]
        return whole[(slice(None), *pending)]


def full_index(index: Any, name: str, axes: tuple[str, ...]) -> tuple[Any, ...]:
    """Return an index as a tuple of at least one whole number or slice, without an ellipsis.

    Raises:
        IndexError: more indices than axes, or an index of another type.
    """
    index = index if isinstance(index, tuple) else (index,)
    at = next((number for number, one in enumerate(index) if one is Ellipsis), None)
    if sum(one is Ellipsis for one in index) > 1:
        raise IndexError(
            f"{name} takes whole numbers and slices, and one ellipsis among them, found {sum(one is Ellipsis for one in index)}"
        )
    if at is not None:
        index = (*index[:at], *([slice(None)] * (len(axes) - len(index) + 1)), *index[at + 1 :])
    if len(index) > len(axes):
        raise IndexError(f"{name} has axes {', '.join(axes)}; found {len(index)} indices")
    for one in index:
        if not isinstance(one, int | np.integer | slice) or isinstance(one, bool):
            raise IndexError(
                f"{name} takes whole numbers and slices; for anything else load it first: trace.{name}[:][...]"
            )
        if isinstance(one, slice):
            _check_slice(one, name)
    return index or (slice(None),)


def _check_slice(one: slice, name: str) -> None:
    """Raise an error for a slice that NumPy would not take.

    Raises:
        IndexError: bounds that are no whole numbers, or a stride of 0.
    """
    for what, value in (("first", one.start), ("end", one.stop), ("stride", one.step)):
        if value is not None and not hasattr(value, "__index__"):
            raise IndexError(f"{name}: expected a whole number as the {what} of a slice, found {value!r}")
    if one.step == 0:
        raise IndexError(f"{name}: expected a stride from 1 upwards, or below 0, found 0")
