"""`Tiles`: the arrays of an explorer page, each deflated on its own, so that the page reads only what it shows.

A tile holds the bytes of one array, little-endian. Where ``delta`` is set, each number but the first along the first
axis is the difference from the one before, modulo the size of its type: what stays the same from step to step becomes
zeros, which deflate to little. Positive numbers are stored in one byte each by their logarithm, so that a column sum of
50 and one of 0.05 have the same relative error.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

TYPES = {"u8": "<u1", "u16": "<u2", "i32": "<i4", "f32": "<f4"}
"""How the page calls the types of numbers, and how NumPy does."""
CODES = 255
"""Codes 1 to 255 are values; 0 is less than the least of them, or no token."""
AT_ONCE = 1 << 16
"""Values that are encoded at a time; the logarithms of a whole layer would take many times its memory."""


@dataclass(frozen=True)
class LogScale:
    """Which value each code stands for.

    Attributes:
        low, high: the values of code 1 and of code 255.
    """

    low: float
    high: float

    @classmethod
    def of(cls, values: Float[np.ndarray, "..."], floor: float = 0.0) -> "LogScale":
        """Return the scale that fits the values from ``floor`` on, of positive ones without it."""
        told = values > 0  # NaN is not
        if not told.any():
            return cls(floor or 1.0, 2 * (floor or 1.0))
        low, high = max(floor, float(values.min(where=told, initial=np.inf))), float(values.max(where=told, initial=0))
        return cls(low, high if high > low * 1.0001 else low * 2)

    @property
    def error(self) -> float:
        """Largest relative error of a value between ``low`` and ``high``."""
        return float((self.high / self.low) ** (0.5 / (CODES - 1)) - 1)

    def encode(self, values: Float[np.ndarray, "*size"]) -> UInt8[np.ndarray, "*size"]:
        """Return the nearest code of each value; 0 for NaN and below ``low``. Larger arrays are encoded row by row."""
        if values.ndim > 1 and values.size > AT_ONCE:
            return np.stack([self.encode(row) for row in values])
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.log(values / self.low) * ((CODES - 1) / np.log(self.high / self.low))
        codes = np.clip(np.rint(np.nan_to_num(place, nan=-1, neginf=-1)) + 1, 0, CODES)
        return np.where(values >= self.low * (1 - 1e-6), codes, 0).astype(np.uint8)


@dataclass
class Tiles:
    """Named arrays as the page gets them.

    Attributes:
        index: {name: {"type", "shape", "delta"}}.
        content: {name: deflated bytes (zlib)}.
        size: bytes of all tiles.
    """

    index: dict[str, dict[str, Any]] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict, repr=False)
    size: int = field(default=0, init=False)

    def add(self, name: str, array: np.ndarray, kind: str, *, delta: bool = False) -> None:
        """Add one array; with ``delta`` as differences along its first axis."""
        values = np.ascontiguousarray(array, dtype=TYPES[kind])
        self.index[name] = {"type": kind, "shape": list(values.shape), "delta": delta}
        if delta and len(values) > 1:
            values = np.concatenate([values[:1], np.diff(values, axis=0)])
        deflated = zlib.compress(values.tobytes(), 6)
        self.content[name] = deflated
        self.size += len(deflated)


def smallest_type(array: np.ndarray) -> str:
    """Return the smallest of the unsigned types that holds all numbers of an array, none of which is negative."""
    largest = int(array.max(initial=0))
    return "u8" if largest < 1 << 8 else "u16" if largest < 1 << 16 else "i32"
