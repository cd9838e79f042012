"""How the explorer stores positive numbers in one byte each: by their logarithm, in 255 steps.

A column sum of 50 and one of 0.05 are stored with the same relative error. Code 0 stands for everything below the least
value told.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

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
        """Return the scale that fits values.

        Args:
            floor: smaller values need not be told; 0 tells the smallest one above 0.
        """
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

    def decode(self, codes: UInt8[np.ndarray, "*size"]) -> Float[np.ndarray, "*size"]:
        """Return the value of each code, 0 for code 0."""
        values = self.low * (self.high / self.low) ** ((np.arange(CODES + 1) - 1) / (CODES - 1))
        values[0] = 0
        return values.astype(np.float32)[codes]
