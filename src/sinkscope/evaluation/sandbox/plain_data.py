"""Plain data as JSON, so that a value leaves a process of the sandbox without any code. Standard library only.

It is what Python's own types hold: numbers, texts, bytes, lists, tuples, sets, dictionaries and their views, ranges, deques, fractions,
decimals, dates. A subclass of a program travels as what it is built on. What can change (a list, a dictionary, a set, a bytearray, a
deque) is numbered in the order in which both sides meet it, so that one object in two places stays one object.
"""

import builtins
import collections
import keyword
import sys
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

_KINDS: dict[str, type] = {"tuple": tuple, "frozenset": frozenset}
_VIEWS: dict[str, type] = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
_DICTIONARIES: dict[str, type] = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "dict": dict}
_CHANGING = (list, set, dict, bytearray, collections.deque)
_EXACT = {type(None), bool, int, float, complex, str, bytes, type, type(...), range, collections.defaultdict, *_CHANGING}
_EXACT |= {*_KINDS.values(), *_VIEWS.values(), *_DICTIONARIES.values()}
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


class Packing:
    """The objects that can change, as `pack` meets them.

    Args:
        exact: refuse subclasses, which the other side would not know.

    Attributes:
        objects: they, by number.
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, value: Any) -> int | None:
        """Return the number of an object; None for one that was not met, which gets the next number."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        return None

    def add(self, objects: list[Any]) -> None:
        """Number objects that the other side has numbered so."""
        for one in objects:
            self.number_of(one)

    def forget(self, count: int) -> None:
        """Forget all but the first so many objects."""
        for one in self.objects[count:]:
            del self._numbers[id(one)]
        del self.objects[count:]


def pack(value: Any, packing: Packing | None = None) -> Any:
    """Return a JSON value that `unpack` reads back.

    Raises:
        TypeError: a value that is not plain data.
    """
    packing = packing or Packing()
    if value is None or value is True or value is False:
        return value
    fields = _fields_of(value)
    if packing.exact and type(value) not in _EXACT and not fields and type(value).__module__ not in ("fractions", "decimal", "datetime"):
        raise _not_plain(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < SMALL else ["int", int.__format__(number, "x")]
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, complex):
        return ["complex", [pack(value.real), pack(value.imag)]]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, _CHANGING):
        number = packing.number_of(value)
        return pack_contents(value, packing) if number is None else ["again", number]
    if fields is not None:
        return ["namedtuple", [type(value).__name__, fields, list(map(pack, tuple.__iter__(value), repeat(packing)))]]
    for name, kind in (*_KINDS.items(), *_VIEWS.items()):
        if isinstance(value, kind):
            return [name, list(map(pack, kind.__iter__(value), repeat(packing)))]  # type: ignore[attr-defined]
    if isinstance(value, range):
        return ["range", [pack(value.start), pack(value.stop), pack(value.step)]]
    if value is Ellipsis or _is_builtin(value):
        return ["builtin", "Ellipsis" if value is Ellipsis else value.__name__]
    return _pack_number_or_date(value)


def pack_contents(value: Any, packing: Packing) -> Any:
    """Return what `pack` returns for an object that can change when it meets it first.

    Raises:
        TypeError: it holds a value that is not plain data.
    """
    if isinstance(value, bytearray):
        return ["bytearray", bytes(value).hex()]
    if isinstance(value, list):
        return ["list", list(map(pack, list.__iter__(value), repeat(packing)))]
    if isinstance(value, set):
        return ["set", list(map(pack, set.__iter__(value), repeat(packing)))]
    if isinstance(value, collections.deque):
        plain = collections.deque
        return ["deque", [list(map(pack, plain.__iter__(value), repeat(packing))), plain.maxlen.__get__(value)]]
    items = []
    ordered = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    for pair in ordered.items(value):
        items.append(list(map(pack, pair, repeat(packing))))
    if type(value) is collections.defaultdict:
        if value.default_factory is None or _is_builtin(value.default_factory):
            return ["defaultdict", [items, pack(value.default_factory)]]
        if packing.exact:
            raise _not_plain(value.default_factory)
    return [next((name for name, kind in _DICTIONARIES.items() if type(value) is kind), "dict"), items]


def _is_builtin(value: Any) -> bool:
    return isinstance(value, type) and vars(builtins).get(value.__name__) is value


def _not_plain(value: Any) -> TypeError:
    return TypeError(f"a {type(value).__name__} is not plain data")


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
    raise _not_plain(value)


def unpack(packed: Any, objects: list[Any] | None = None) -> Any:
    """Return the value that `pack` was given.

    Args:
        objects: what can change, as its numbers say; what is met is added.

    Raises:
        ValueError: the JSON value was not made by `pack`.
    """
    objects = [] if objects is None else objects
    if packed is None or isinstance(packed, bool | int | float | str):
        return packed
    match packed:
        case ["int", str() as digits]:
            return int(digits, 16)
        case ["complex", [real, imaginary]]:
            return complex(unpack(real), unpack(imaginary))
        case ["bytes", str() as digits]:
            return bytes.fromhex(digits)
        case ["again", int() as number] if 0 <= number < len(objects):
            return objects[number]
        case [str() as name, str() | list() as contents] if (empty := _empty(name, contents)) is not None:
            objects.append(empty)
            fill(empty, packed, objects)
            return empty
        case ["keys", list() as items]:
            return dict.fromkeys(_unpacked(items, objects)).keys()
        case ["values", list() as items]:
            return dict(enumerate(_unpacked(items, objects))).values()
        case ["items", list() as items]:
            return dict(_unpacked(items, objects)).items()
        case ["namedtuple", [str() as name, list() as fields, list() as items]]:
            return collections.namedtuple(name, fields)(*_unpacked(items, objects))
        case ["range", [start, stop, step]]:
            return range(unpack(start), unpack(stop), unpack(step))
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
            return _KINDS[name](_unpacked(items, objects))
    raise ValueError(f"not a packed value: {str(packed)[:80]}")


def _unpacked(items: list[Any], objects: list[Any]) -> Iterator[Any]:
    return map(unpack, items, repeat(objects))


def _empty(name: str, contents: Any) -> Any:
    """Return a new object that can change; None where a name is not one's."""
    match name, contents:
        case "list" | "set" | "bytearray", _:
            return vars(builtins)[name]()
        case "deque", [list(), int() | None as most]:
            return collections.deque(maxlen=most)
        case "defaultdict", [list(), factory]:
            return collections.defaultdict(unpack(factory))
        case _ if name in _DICTIONARIES:
            return _DICTIONARIES[name]()
    return None


def fill(mine: Any, packed: Any, objects: list[Any]) -> None:
    """Give an object the contents that `pack_contents` returned.

    Raises:
        ValueError: they are not of its kind.
    """
    match packed:
        case ["bytearray", str() as digits] if isinstance(mine, bytearray):
            mine[:] = bytes.fromhex(digits)
        case ["list", list() as items] if isinstance(mine, list):
            mine[:] = _unpacked(items, objects)
        case ["set", list() as items] if isinstance(mine, set):
            _replace(mine, mine.update, _unpacked(items, objects))
        case ["deque", [list() as items, _]] if isinstance(mine, collections.deque):
            _replace(mine, mine.extend, _unpacked(items, objects))
        case ["defaultdict", [list() as items, _]] | [str(), list() as items] if isinstance(mine, dict):
            pairs = list(map(unpack, chain.from_iterable(items), repeat(objects)))
            mine.clear()
            for key, item in zip(pairs[::2], pairs[1::2], strict=True):
                mine[key] = item
        case _:
            raise ValueError(f"not the contents of a {type(mine).__name__}: {str(packed)[:80]}")


def _replace(mine: Any, add: Callable[[Iterator[Any]], None], items: Iterator[Any]) -> None:
    mine.clear()
    add(items)


def unpack_reply(
    reply: dict[str, Any],
    objects: list[Any] | None = None,
    as_exception: Callable[[dict[str, Any]], BaseException] = lambda reply: Exception(),
) -> Any:
    """Return the value with which the program's process answered, or what stands for it.

    Args:
        objects: what can change of the arguments of the call, as `Packing` numbered it.
        as_exception: returns what ended an iteration.

    Raises:
        ValueError: it was not made by `pack`.
    """
    objects = [] if objects is None else objects
    if "foreign" not in reply:
        return unpack(reply.get("value"), objects)
    kind, truth, items, ends = str(reply["foreign"])[:80], reply.get("truth") is not False, reply.get("items"), reply.get("ends")
    if not isinstance(items, list):
        return Foreign(kind, truth)

    def end() -> None:
        if reply.get("more"):
            raise TypeError(f"a {kind} gives more than {len(items)} items, of which no more leave the program")
        if isinstance(ends, dict) and "error" in ends:
            raise as_exception(ends)

    return (ForeignIterator if reply.get("iterator") is True else Foreign)(kind, truth, [*_unpacked(items, objects)], end)


def fill_arguments(arguments: list[Any], reply: dict[str, Any], objects: list[Any]) -> None:
    """Give the objects of the arguments of a call the contents that the function left in them.

    Args:
        arguments: what can change of them, as `Packing` numbered it.
        objects: the same, and what `unpack_reply` has added.

    Raises:
        ValueError: contents that `pack_contents` did not make.
    """
    contents = reply.get("arguments")
    for mine, packed in zip(arguments, contents if isinstance(contents, list) else (), strict=False):
        fill(mine, packed, objects)
