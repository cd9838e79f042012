"""Writes a part of a trace as a safetensors file without copying the steps, and computes its checksum while it is
written.

The bytes equal those of `safetensors.numpy.save` on the stacked steps, except for the order of the metadata. `np.stack`
and `save` would copy everything twice.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sinkscope.errors import TraceError
from sinkscope.runs.files import compare_file
from sinkscope.traces.format import DTYPES, write_whole
from sinkscope.traces.schema import DAMAGED, type_of

WHOLE = 1 << 16
"""Smallest number of bytes of a step that is written by itself; smaller ones are stacked first."""
ASIDE = 1 << 20
"""Smallest number of bytes of a piece that another thread hashes while it is written."""

_FILL = {"F32": np.nan, "I32": -1, "U8": 0}


def write_part(path: Path, steps: list[dict[str, np.ndarray]], metadata: dict[str, str]) -> str:
    """Write steps stacked along a new first axis; a last axis that grew is filled up to the widest step.

    Args:
        steps: at least one; all have the tensors of the first.

    Returns:
        The sha256 of the file, hexadecimal.
    """
    tensors = {name: [step[name] for step in steps] for name in steps[0]}
    codes = {dtype: code for code, dtype in DTYPES.items()}
    order = sorted(tensors, key=lambda name: (list(codes).index(tensors[name][0].dtype), name))
    shapes = {name: (len(steps), *_widest(tensors[name])) for name in order}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        start, end = end, end + prod(shapes[name]) * tensors[name][0].itemsize
        header[name] = {
            "dtype": codes[tensors[name][0].dtype],
            "shape": list(shapes[name]),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1, "sinkscope hash") as aside:
        pieces = (piece for name in order for piece in _pieces(name, tensors[name], shapes[name]))
        write_whole(path, _hashed(pieces, len(text).to_bytes(8, "little") + text, digest, aside))
    return digest.hexdigest()


def widen(name: str, array: np.ndarray, width: int) -> np.ndarray:
    """Return an array whose last axis is filled up to ``width``: with NaN, −1 where it holds ids, 0 in `masked`."""
    if array.shape[-1] >= width:
        return array
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, room, constant_values=_FILL[type_of(name)])


def _widest(arrays: list[np.ndarray]) -> tuple[int, ...]:
    shape = arrays[0].shape
    return (*shape[:-1], max(array.shape[-1] for array in arrays)) if shape else ()


def _pieces(name: str, arrays: list[np.ndarray], shape: tuple[int, ...]) -> Iterator[memoryview]:
    wide = (widen(name, array, shape[-1]) if array.ndim else array for array in arrays)
    if arrays[0].nbytes < WHOLE:
        wide = iter([np.stack(list(wide))])
    for array in wide:
        yield np.ascontiguousarray(array).reshape(-1).data.cast("B") if array.size else memoryview(b"")


def _hashed(
    pieces: Iterator[memoryview], header: bytes, digest: Any, aside: ThreadPoolExecutor
) -> Iterator[bytes | memoryview]:
    digest.update(header)
    yield header
    under_way: Future[None] | None = None
    for piece in pieces:
        if under_way is not None:
            under_way.result()
        under_way = aside.submit(digest.update, piece) if piece.nbytes >= ASIDE else digest.update(piece)
        yield piece


@dataclass(frozen=True)
class Part:
    """One file of a trace.

    Attributes:
        sha256: of the file, if the manifest lists it.
        verify: whether the file is compared with it when it is first read in this process.
        generation: hash of the manifest and the first tokens, the same in all parts of a trace; empty in a bundle.
    """

    path: Path
    first_step: int
    steps: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    sha256: str | None = None
    verify: bool = True
    generation: str = ""

    def read(self, name: str, index: tuple[Any, ...]) -> np.ndarray:
        """Return what an index of ints and slices selects of a tensor.

        Raises:
            TraceError: the file has other bytes than were written.
        """
        if self.verify:
            self._compared  # noqa: B018 - once
        with _open(self.path) as file:
            found = file.get_slice(name)[index]
        return found.astype(np.float32) if found.dtype == np.float16 else found

    @cached_property
    def _compared(self) -> None:
        self.compare()

    def compare(self) -> None:
        """Raise TraceError where the file has other bytes than its checksum, if the manifest lists it."""
        if self.sha256 is not None:
            compare_file(self.path, self.sha256, TraceError, "its manifest")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path}: {error}; {DAMAGED}, or was moved since it was opened") from error


def read_part(path: Path) -> Part:
    """Return the description of a part: its steps, and the shapes and types of its tensors."""
    with _open(path) as file:
        metadata = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
    if not {"first_step", "steps"} <= metadata.keys():
        raise TraceError(f"{path}: expected a part of a trace with first_step and steps; {DAMAGED}")
    first, steps = int(metadata["first_step"]), int(metadata["steps"])
    return Part(path, first, steps, shapes, dtypes, generation=metadata.get("generation", ""))
