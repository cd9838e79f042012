"""Plain data as JSON, so that a value can leave the process of a program without any of its code.

Subclasses travel as what they are built on; whatever else the program made of ``==`` stays behind.
Standard library only: this runs inside the sandbox.
"""

import sys
from collections.abc import Iterator
from typing import Any

_KINDS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS = (type({}.keys()), type({}.items()))
_WRITTEN = {"Decimal": "decimal", "Fraction": "fractions"}  # travel as what ``str`` makes of them
SMALL = 1 << 53


class Foreign:
    """Stands for a value that is not plain data: equal to nothing else, and not None.

    Args:
        kind: the name of its type.
        truth: what ``bool`` says of it.
        items: what iterating over it gives, where that is known.
    """

    def __init__(self, kind: str, truth: bool = True, items: list[Any] | None = None) -> None:
        self.kind, self.truth, self.items = kind, truth, items

    def __repr__(self) -> str:
        return f"a {self.kind}, which is not plain data and cannot be compared outside the program"

    def __bool__(self) -> bool:
        return self.truth

    def __iter__(self) -> Iterator[Any]:
        if self.items is None:
            raise TypeError(f"'{self.kind}' object is not iterable")
        return iter(self.items)


def pack(value: Any) -> Any:
    """A JSON value that `unpack` reads back.

    Raises:
        TypeError: a value that is not plain data.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < SMALL else ["int", int.__format__(number, "x")]
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, complex):
        return ["complex", [pack(value.real), pack(value.imag)]]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, dict):
        return ["dict", [[pack(key), pack(item)] for key, item in dict.items(value)]]
    if isinstance(value, _VIEWS):
        return ["set", [pack(item) for item in value]]
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return [name, [pack(item) for item in kind.__iter__(value)]]
    for name, module in _WRITTEN.items():
        if module in sys.modules and isinstance(value, getattr(sys.modules[module], name)):
            return [name, str(value)]
    raise TypeError(f"a {type(value).__name__} is not plain data")


def unpack(packed: Any) -> Any:
    """The value behind a JSON value.

    Raises:
        ValueError: it was not made by `pack`.
    """
    if packed is None or isinstance(packed, bool | int | float | str):
        return packed
    match packed:
        case ["int", str() as digits]:
            return int(digits, 16)
        case ["complex", [real, imaginary]]:
            return complex(unpack(real), unpack(imaginary))
        case ["bytes", str() as digits]:
            return bytes.fromhex(digits)
        case ["dict", list() as items]:
            return {unpack(key): unpack(item) for key, item in items}
        case ["Decimal", str() as digits]:
            from decimal import Decimal

            return Decimal(digits)
        case ["Fraction", str() as digits]:
            from fractions import Fraction

            return Fraction(digits)
        case [str() as name, list() as items] if name in _KINDS:
            return _KINDS[name](unpack(item) for item in items)
    raise ValueError(f"not a packed value: {str(packed)[:80]}")


def unpack_reply(reply: dict[str, Any]) -> Any:
    """The value a program's process answered with, or what stands for it.

    Raises:
        ValueError: it was not made by `pack`.
    """
    if "foreign" not in reply:
        return unpack(reply.get("value"))
    items = reply.get("items")
    return Foreign(str(reply["foreign"])[:80], reply.get("truth") is not False, None if items is None else list(unpack(items)))
