"""Fractions, decimals and dates as JSON. Standard library only."""

import sys
from typing import Any

_DATES = {
    "date": ("year", "month", "day"),
    "time": ("hour", "minute", "second", "microsecond"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
}
MODULES = ("fractions", "decimal", "datetime")
LARGEST_BITS = 1 << 16
"""Bits of the numbers of a fraction, and digits of a decimal number: more of them would take long to compare."""


def pack_number_or_date(value: Any) -> Any:
    """Return a JSON value that `unpack_number_or_date` reads back; None for a value of another kind."""
    if "fractions" in sys.modules and isinstance(value, sys.modules["fractions"].Fraction):
        plain = sys.modules["fractions"].Fraction  # whatever a subclass says of itself
        return ["Fraction", [int.__format__(part.fget(value), "x") for part in (plain.numerator, plain.denominator)]]
    if "decimal" in sys.modules and isinstance(value, sys.modules["decimal"].Decimal):
        return ["Decimal", sys.modules["decimal"].Decimal.__str__(value)]
    for name, parts in _DATES.items() if "datetime" in sys.modules else ():
        if type(value) is getattr(sys.modules["datetime"], name) and getattr(value, "tzinfo", None) is None:
            return ["of dates", [name, [getattr(value, part) for part in parts], getattr(value, "fold", 0)]]
    return None


def unpack_number_or_date(packed: Any) -> Any:
    """Return the value that `pack_number_or_date` was given; None where it made something else.

    Raises:
        ValueError: numbers that are none, or too large to compare.
    """
    match packed:
        case ["Decimal", str() as digits]:
            from decimal import Decimal

            if len(digits) > LARGEST_BITS:
                raise ValueError("a decimal number of too many digits to compare")
            return Decimal(digits)
        case ["Fraction", [str() as above, str() as below]]:
            from fractions import Fraction

            above, below = int(above, 16), int(below, 16)
            if below <= 0 or max(abs(above), below).bit_length() > LARGEST_BITS:
                raise ValueError("a fraction of numbers that are too large to compare")
            return Fraction(above, below)
        case ["of dates", [str() as name, list() as numbers, 0 | 1 as fold]] if name in _DATES:
            import datetime

            value = getattr(datetime, name)(*map(int, numbers))
            return value.replace(fold=fold) if fold else value
    return None
