"""`Tiles`: the arrays of an explorer page, each deflated on its own, so that the page reads only what it shows.

A tile holds the bytes of one array, little-endian. Where ``delta`` is set, each number but the first along the first
axis is the
difference from the one before, modulo the size of its type: what stays the same from step to step becomes zeros, which
deflate to little.
"""

import hashlib
import weakref
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from threading import Lock
from typing import Any

import numpy as np

TYPES = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4"}
"""How the page calls the types of numbers, and how NumPy does."""
IN_MEMORY = 64_000_000
"""Bytes of tiles up to which they stay in memory."""


class SpooledBytes(MutableMapping[str, bytes]):
    """Named pieces of bytes in memory; from `IN_MEMORY` bytes on, in a temporary file. Threads may read at once."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._places: dict[str, tuple[int, int]] = {}
        self._one_at_a_time = Lock()

    def __setitem__(self, name: str, content: bytes) -> None:
        with self._one_at_a_time:
            self._places[name] = (self._file.seek(0, 2), len(content))
            self._file.write(content)

    def __getitem__(self, name: str) -> bytes:
        with self._one_at_a_time:
            start, size = self._places[name]
            self._file.seek(start)
            return self._file.read(size)

    def __delitem__(self, name: str) -> None:
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass
class Tiles:
    """Named arrays as the page gets them.

    Attributes:
        index: {name: {"type", "shape", "delta"}}.
        content: {name: deflated bytes (zlib)}.
        size: bytes of all tiles.
    """

    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    content: MutableMapping[str, bytes] = field(default_factory=SpooledBytes, repr=False)
    size: int = field(default=0, init=False)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that differ between tiles that differ."""
        total = hashlib.sha256()
        for name, content in self.content.items():
            total.update(f"{name} {len(content)} ".encode() + content)
        return total.hexdigest()[:16]

    def add(self, name: str, array: np.ndarray, kind: str, *, delta: bool = False) -> None:
        """Add one array; with ``delta`` as differences along its first axis."""
        values = np.ascontiguousarray(array, dtype=TYPES[kind])
        self.index[name] = {"type": kind, "shape": list(values.shape), "delta": delta}
        if delta and len(values) > 1:
            values = np.concatenate([values[:1], np.diff(values, axis=0)])
        deflated = zlib.compress(values.tobytes(), 6)
        self.content[name] = deflated
        self.size += len(deflated)

    def read(self, name: str) -> np.ndarray:
        """Return an array as the page reads it."""
        about = self.index[name]
        values = np.frombuffer(zlib.decompress(self.content[name]), TYPES[about["type"]]).reshape(about["shape"])
        return np.cumsum(values, axis=0, dtype=values.dtype) if about["delta"] else values


def smallest_type(array: np.ndarray) -> str:
    """Return the smallest of the unsigned types that holds all numbers of an array, none of which is negative."""
    largest = int(array.max(initial=0))
    return "u8" if largest < 1 << 8 else "u16" if largest < 1 << 16 else "i32"
