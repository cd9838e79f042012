"""Plain data as JSON, so that a value leaves a process of the sandbox without any code. Standard library only.

It is what Python's own types hold: numbers, texts, bytes, lists, tuples, sets, dictionaries and their views, ranges, deques, fractions,
decimals, dates. A subclass of a program travels as what it is built on.
"""

import builtins
import collections
import keyword
import sys
from collections.abc import Callable, Iterator
from typing import Any

_KINDS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS: dict[str, type] = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
_DICTIONARIES: dict[str, type] = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "dict": dict}
_DATES = {
    "date": ("year", "month", "day"),
    "time": ("hour", "minute", "second", "microsecond"),
    "datetime": ("year", "month", "day", "hour", "minute", "second", "microsecond"),
    "timedelta": ("days", "seconds", "microseconds"),
}
SMALL = 1 << 53
LARGEST_BITS = 1 << 16
"""Bits of the numbers of a fraction, and digits of a decimal number: more of them would take long to compare."""


class Foreign:
    """A stand-in for a value that is not plain data: equal to nothing else, and not None.

    Args:
        kind: the name of its type.
        truth: what ``bool`` says of it.
        items: what iterating over it gives, where that is known.
        end: raises what ends the iteration, if anything does.
    """

    def __init__(self, kind: str, truth: bool = True, items: list[Any] | None = None, end: Callable[[], None] = lambda: None) -> None:
        self.kind, self.truth, self.items, self.end = kind, truth, items, end

    def __repr__(self) -> str:
        return f"a {self.kind}, which is not plain data and cannot be compared outside the program"

    def __bool__(self) -> bool:
        return self.truth

    def __iter__(self) -> Iterator[Any]:
        if self.items is None:
            raise TypeError(f"'{self.kind}' object is not iterable")
        return self._run()

    def _run(self) -> Iterator[Any]:
        yield from self.items or ()
        self.end()


class ForeignIterator(Foreign):
    """A stand-in for an iterator, which gives each of its items once."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not hasattr(self, "_running"):
            self._running = self._run()
        return next(self._running)


def pack(value: Any) -> Any:
    """Return a JSON value that `unpack` reads back.

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
        return ["bytes" if isinstance(value, bytes) else "bytearray", bytes(value).hex()]
    if isinstance(value, dict):
        name = next((name for name, kind in _DICTIONARIES.items() if type(value) is kind), "dict")
        return [name, [[pack(key), pack(item)] for key, item in dict.items(value)]]
    if (fields := _fields_of(value)) is not None:
        return ["namedtuple", [type(value).__name__, fields, [pack(item) for item in tuple.__iter__(value)]]]
    for name, kind in (*_KINDS.items(), *_VIEWS.items()):
        if isinstance(value, kind):
            return [name, [pack(item) for item in kind.__iter__(value)]]  # type: ignore[attr-defined]
    if isinstance(value, range):
        return ["range", [pack(value.start), pack(value.stop), pack(value.step)]]
    if isinstance(value, collections.deque):
        plain = collections.deque
        return ["deque", [[pack(item) for item in plain.__iter__(value)], plain.maxlen.__get__(value)]]
    if value is Ellipsis or (isinstance(value, type) and vars(builtins).get(value.__name__) is value):
        return ["builtin", "Ellipsis" if value is Ellipsis else value.__name__]
    return _pack_number_or_date(value)


def _fields_of(value: Any) -> list[str] | None:
    """Return the names of the items of a named tuple; None for anything else."""
    fields = getattr(type(value), "_fields", None) if isinstance(value, tuple) else None
    if not isinstance(fields, tuple) or len(fields) != tuple.__len__(value) or len(set(fields)) != len(fields):
        return None
    names = [type(value).__name__, *fields]
    good = all(isinstance(one, str) and one.isidentifier() and not keyword.iskeyword(one) for one in names)
    return [*fields] if good and not any(one.startswith("_") for one in fields) else None


def _pack_number_or_date(value: Any) -> Any:
    if "fractions" in sys.modules and isinstance(value, sys.modules["fractions"].Fraction):
        plain = sys.modules["fractions"].Fraction  # whatever a subclass says of itself
        return ["Fraction", [pack(plain.numerator.fget(value)), pack(plain.denominator.fget(value))]]
    if "decimal" in sys.modules and isinstance(value, sys.modules["decimal"].Decimal):
        return ["Decimal", sys.modules["decimal"].Decimal.__str__(value)]
    for name, parts in _DATES.items() if "datetime" in sys.modules else ():
        if type(value) is getattr(sys.modules["datetime"], name) and getattr(value, "tzinfo", None) is None:
            return ["of dates", [name, [getattr(value, part) for part in parts]]]
    raise TypeError(f"a {type(value).__name__} is not plain data")


def unpack(packed: Any) -> Any:
    """Return the value that `pack` was given.

    Raises:
        ValueError: the JSON value was not made by `pack`.
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
        case ["bytearray", str() as digits]:
            return bytearray.fromhex(digits)
        case [str() as name, list() as items] if name in _DICTIONARIES:
            return _DICTIONARIES[name]({unpack(key): unpack(item) for key, item in items})
        case ["keys", list() as items]:
            return dict.fromkeys(map(unpack, items)).keys()
        case ["values", list() as items]:
            return dict(enumerate(map(unpack, items))).values()
        case ["items", list() as items]:
            return dict(map(unpack, items)).items()
        case ["namedtuple", [str() as name, list() as fields, list() as items]]:
            return collections.namedtuple(name, fields)(*map(unpack, items))
        case ["range", [start, stop, step]]:
            return range(unpack(start), unpack(stop), unpack(step))
        case ["deque", [list() as items, int() | None as most]]:
            return collections.deque(map(unpack, items), most)
        case ["builtin", "Ellipsis"]:
            return Ellipsis
        case ["builtin", str() as name] if isinstance(vars(builtins).get(name), type):
            return vars(builtins)[name]
        case ["Decimal", str() as digits]:
            from decimal import Decimal

            if len(digits) > LARGEST_BITS:
                raise ValueError("a decimal number of too many digits to compare")
            return Decimal(digits)
        case ["Fraction", [above, below]]:
            from fractions import Fraction

            above, below = unpack(above), unpack(below)
            if not (type(above) is type(below) is int and below > 0 and max(abs(above), below).bit_length() <= LARGEST_BITS):
                raise ValueError("a fraction of numbers that are too large to compare")
            return Fraction(above, below)
        case ["of dates", [str() as name, list() as numbers]] if name in _DATES:
            import datetime

            return getattr(datetime, name)(*map(int, numbers))
        case [str() as name, list() as items] if name in _KINDS:
            return _KINDS[name](unpack(item) for item in items)
    raise ValueError(f"not a packed value: {str(packed)[:80]}")


def unpack_reply(reply: dict[str, Any], as_exception: Callable[[dict[str, Any]], Exception] = lambda reply: Exception()) -> Any:
    """Return the value with which the program's process answered, or what stands for it.

    Args:
        as_exception: returns what ended an iteration.

    Raises:
        ValueError: it was not made by `pack`.
    """
    if "foreign" not in reply:
        return unpack(reply.get("value"))
    kind, truth, items, ends = str(reply["foreign"])[:80], reply.get("truth") is not False, reply.get("items"), reply.get("ends")
    if not isinstance(items, list):
        return Foreign(kind, truth)

    def end() -> None:
        if reply.get("more"):
            raise TypeError(f"a {kind} gives more than {len(items)} items, of which no more leave the program")
        if isinstance(ends, dict) and "error" in ends:
            raise as_exception(ends)

    return (ForeignIterator if reply.get("iterator") is True else Foreign)(kind, truth, [unpack(item) for item in items], end)


def follow(mine: Any, theirs: Any) -> None:
    """Do to an argument of the tests what the function did to it; an object that is in both places stays the same."""
    if type(mine) is not type(theirs):
        return
    if isinstance(mine, tuple):
        for one, other in zip(mine, theirs, strict=False):
            follow(one, other)
    elif isinstance(mine, list):
        if len(mine) == len(theirs):
            mine[:] = [_followed(one, other) for one, other in zip(mine, theirs, strict=True)]
        else:
            mine[:] = theirs
    elif isinstance(mine, dict):
        kept = {key: _followed(mine[key], item) if key in mine else item for key, item in theirs.items()}
        mine.clear()
        mine.update(kept)
    elif isinstance(mine, set):
        mine.clear()
        mine.update(theirs)
    elif isinstance(mine, bytearray):
        mine[:] = theirs
    elif isinstance(mine, collections.deque):
        mine.clear()
        mine.extend(theirs)


def _followed(mine: Any, theirs: Any) -> Any:
    """Return an object of the tests after it has followed, else the new one in its place."""
    if type(mine) is not type(theirs) or not isinstance(mine, list | dict | set | bytearray | tuple | collections.deque):
        return theirs
    if isinstance(mine, tuple) and mine != theirs:
        return theirs
    follow(mine, theirs)
    return mine
