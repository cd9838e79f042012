"""`Tiles`: the arrays of an explorer page, each deflated on its own, so that the page reads only what it shows.

A tile holds the bytes of one array, little-endian. Where ``delta`` is set, each number but the first along the first axis is the
difference from the one before, modulo the size of its type: what stays the same from step to step becomes zeros, which deflate to little.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TYPES = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4"}
"""How the page calls the types of numbers, and how NumPy does."""


@dataclass
class Tiles:
    """Named arrays as the page gets them.

    Attributes:
        index: {name: {"type", "shape", "delta"}}.
        content: {name: deflated bytes (zlib)}.
    """

    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Bytes of all tiles."""
        return sum(map(len, self.content.values()))

    def add(self, name: str, array: np.ndarray, kind: str, *, delta: bool = False) -> None:
        """Add one array; with ``delta`` as differences along its first axis."""
        values = np.ascontiguousarray(array, dtype=TYPES[kind])
        self.index[name] = {"type": kind, "shape": list(values.shape), "delta": delta}
        if delta and len(values) > 1:
            values = np.concatenate([values[:1], np.diff(values, axis=0)])
        self.content[name] = zlib.compress(values.tobytes(), 6)

    def read(self, name: str) -> np.ndarray:
        """Return an array as the page reads it."""
        about = self.index[name]
        values = np.frombuffer(zlib.decompress(self.content[name]), TYPES[about["type"]]).reshape(about["shape"])
        return np.cumsum(values, axis=0, dtype=values.dtype) if about["delta"] else values


def smallest_type(array: np.ndarray) -> str:
    """Return the smallest of the unsigned types that holds all numbers of an array, none of which is negative."""
    largest = int(array.max(initial=0))
    return "u8" if largest < 1 << 8 else "u16" if largest < 1 << 16 else "i32"
