"""Plain data as JSON, so that a value can leave the process of a program without any of its code.

Subclasses travel as what they are built on; whatever else the program made of ``==`` stays behind.
Standard library only: this runs inside the sandbox.
"""

from typing import Any

_KINDS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS = (type({}.keys()), type({}.items()))
SMALL = 1 << 53


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
        case [str() as name, list() as items] if name in _KINDS:
            return _KINDS[name](unpack(item) for item in items)
    raise ValueError(f"not a packed value: {str(packed)[:80]}")
