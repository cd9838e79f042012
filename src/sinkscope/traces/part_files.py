"""Writes a part of a trace as a safetensors file without copying the steps, and computes its checksum while it is written.

The bytes equal those of `safetensors.numpy.save` on the stacked steps, except for the order of the metadata. `np.stack` and `save`
would copy everything twice.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sinkscope.checksums import compare_file
from sinkscope.documents import check_regular, exists, read_json_object
from sinkscope.errors import TraceError
from sinkscope.traces.format import DTYPES, MANIFEST, write_whole
from sinkscope.traces.part_checks import (
    OF_GROUPS,
    check_group,
    check_keys,
    check_lengths,
    check_masked,
    check_prompt,
    check_values,
)

WHOLE = 1 << 16
"""Smallest number of bytes of a step that is written by itself; smaller ones are stacked first."""
ASIDE = 1 << 20
"""Smallest number of bytes of a piece that another thread hashes while it is written."""

_FILL: dict[str, Any] = {
    "tokens": -1,
    "written": -1,
    "predicted": -1,
    "masked": 0,
    "lengths": 0,
    "top_column_sums_key": -1,
    "top_last_query_key": -1,
    "top_newest_columns_key": -1,
}


def write_part(path: Path, steps: list[dict[str, np.ndarray]], metadata: dict[str, str]) -> str:
    """Write steps stacked along a new first axis; a last axis that grew is filled up to the widest step.

    Args:
        steps: at least one; all have the tensors of the first.

    Returns:
        The checksum of the file: sha256, hexadecimal.

    Raises:
        TraceError: no permission, no space.
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
    """Return an array whose last axis is filled up to ``width`` with the value for "nothing" of that tensor."""
    if array.shape[-1] >= width:
        return array
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, room, constant_values=_FILL.get(name, np.nan))


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
        listed: checksums of all files of the trace when it was opened.
        crossing: whether its keys are another stack's tokens, of which any number of queries may see one.
        generation: hash of what made it, the same in all parts of a trace; empty in those of earlier versions.
        mask_id, prompt_length: the mask token, where the trace has one, and the tokens of its prompt, which has no masks.
    """

    path: Path
    first_step: int
    steps: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    sha256: str | None = None
    verify: bool = True
    listed: tuple[str, ...] = ()
    crossing: bool = False
    generation: str = ""
    mask_id: int | None = None
    prompt_length: int = 0

    def read(self, name: str, index: tuple[Any, ...]) -> np.ndarray:
        """Return what an index of ints and slices selects of a tensor.

        The first time, the file is compared with its checksum and the values of the tensor are checked.

        Raises:
            TraceError: a damaged file.
        """
        with same_trace(self.path.parent, self.listed):
            if self.verify:
                self._compare()
                self._check(name)
            with open_part(self.path) as file:
                found = file.get_slice(name)[index]
        return found.astype(np.float32) if found.dtype == np.float16 else found

    def compare(self) -> None:
        """Compare the file with its checksum, where the manifest lists it.

        Raises:
            TraceError: it has other bytes than were written.
        """
        with same_trace(self.path.parent, self.listed):
            self._compare()

    def _compare(self) -> None:
        if self.sha256 is not None:
            compare_file(self.path, self.sha256, TraceError, "its manifest")

    def _check(self, name: str) -> None:
        known = (self.path, name, self.path.stat().st_mtime_ns)
        if known in _checked:
            return
        with open_part(self.path) as file:
            lengths = file.get_tensor("lengths") if "lengths" in self.shapes else None
            if lengths is not None:
                check_lengths(self.path, lengths, self.shapes["tokens"][-1] if "tokens" in self.shapes else None)
            found = file.get_tensor(name)
            check_values(
                self.path,
                name,
                found.astype(np.float32) if found.dtype == np.float16 else found,
                lengths,
                self.crossing,
            )
            if name.endswith("_key") and lengths is not None:
                check_keys(self.path, name, file.get_tensor(name), int(lengths.max(initial=0)))
            if name in ("tokens", "masked") and {"tokens", "masked"} <= self.shapes.keys() and self.mask_id is not None:
                check_masked(self.path, masked := file.get_tensor("masked"), file.get_tensor("tokens"), self.mask_id)
                if self.first_step == 0:
                    check_prompt(self.path, masked[0], self.prompt_length)
            if name in OF_GROUPS and "column_sums" in self.shapes:
                check_group(self.path, name, found, file.get_tensor("column_sums"))
        _checked.add(known)


@contextmanager
def same_trace(folder: Path, listed: Sequence[str]) -> Iterator[None]:
    """Say of a trace that is found damaged in the body whether it was moved or replaced since it was opened.

    Args:
        listed: the checksums of its files, as its manifest had them when it was opened.

    Raises:
        TraceError: what the body raises, or that it was moved or replaced.
    """
    try:
        yield
    except TraceError as error:
        expected = f"{folder}: expected the trace that was opened there, found"
        if not exists(folder / MANIFEST):
            raise TraceError(f"{expected} none; it was moved or deleted since: open it where it is now") from error
        now = read_json_object(folder / MANIFEST, TraceError).get("parts")
        if isinstance(now, list) and [part.get("sha256") for part in now if isinstance(part, dict)] != [*listed]:
            raise TraceError(f"{expected} another one; it was replaced or written on since: open it again") from error
        raise


_checked: set[tuple[Path, str, int]] = set()
"""Tensors whose values were checked in this process."""


def open_part(path: Path) -> Any:
    """Open a part for reading, as safetensors does.

    Raises:
        TraceError: a damaged file.
    """
    check_regular(path, TraceError, "the trace is damaged")
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise TraceError(
            f"{path}: expected a safetensors file, found one that cannot be read; the file is damaged"
        ) from error


def read_part(path: Path) -> Part:
    """Return the description of a part: its steps, and the shapes and types of its tensors.

    Raises:
        TraceError: a damaged file, or one that is no part of a trace.
    """
    with open_part(path) as file:
        metadata = file.metadata() or {}
        names = list(file.keys())
        slices = {name: file.get_slice(name) for name in names}
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
    if not {"first_step", "steps"} <= metadata.keys():
        raise TraceError(f"{path}: expected a part of a trace, found a safetensors file without first_step and steps")
    for key in ("first_step", "steps"):
        if not re.fullmatch(r"[0-9]{1,9}", metadata[key]):
            raise TraceError(
                f"{path}: {key}: expected a whole number from 0 upwards, found {metadata[key][:60]!r}; the file is damaged"
            )
    generation = metadata.get("generation", "")
    return Part(path, int(metadata["first_step"]), int(metadata["steps"]), shapes, dtypes, generation=generation)
