"""Plain data as JSON, so that a value leaves a process of the sandbox without any code. Standard library only.

It is what Python's own types hold: numbers, texts, bytes, lists, tuples, sets, dictionaries and their views, ranges, deques, fractions,
decimals, dates, exceptions. A subclass of a program travels as what it is built on. What can change (a list, a dictionary, a set, a
bytearray, a deque) is numbered in the order in which both sides meet it, so that one object in two places stays one object.
"""

import builtins
import collections
import contextlib
import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

from sinkscope.evaluation.sandbox.foreign import Foreign
from sinkscope.evaluation.sandbox.numbers_and_dates import MODULES, pack_number_or_date, unpack_number_or_date
from sinkscope.evaluation.sandbox.raised import is_of_the_library, pack_exception, unpack_exception

_KINDS: dict[str, type] = {"tuple": tuple, "frozenset": frozenset}
_VIEWS: dict[str, type] = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
_DICTIONARIES: dict[str, type] = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "dict": dict}
_CHANGING = (list, set, dict, bytearray, collections.deque)
_BUILTIN = {"Ellipsis": ..., "NotImplemented": NotImplemented, "NoneType": type(None)}
_EXACT = {
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    type(...),
    type(NotImplemented),
    range,
    collections.defaultdict,
}
_EXACT |= {*_CHANGING, *_KINDS.values(), *_VIEWS.values(), *_DICTIONARIES.values()}
_OF_NAMED_TUPLES = {"_fields", "_field_defaults", "_make", "_replace", "_asdict"}
SMALL = 1 << 53
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two surrogates, which JSON would join into one character."""
_set_recursion_limit = sys.setrecursionlimit  # the program may replace it
DEEPEST = 5000


class Numbering:
    """The objects of one call that can change, numbered alike on both sides.

    Args:
        exact: `pack` refuses subclasses, which the other side would not know.
        foreign: what is no plain data, by number: the values in the program's process, what stands for them elsewhere.

    Attributes:
        objects: they, by number.
        given: how many of them came with the arguments of the call.
        met_again: numbers of those that were known at the last `begin` and that `pack` met since.
    """

    def __init__(self, exact: bool = False, foreign: Mapping[int, Any] | None = None) -> None:
        self.exact, self.foreign = exact, foreign or {}
        self.objects: list[Any] = []
        self.given = 0
        self.met_again: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._known = 0

    def begin(self) -> None:
        """Begin a reply."""
        self.met_again, self._known = set(), len(self.objects)

    def number_of(self, value: Any) -> int | None:
        """Return the number of an object; None for one that was not met, which gets the next number."""
        number = self._numbers.get(id(value))
        if number is not None:
            if number < self._known:
                self.met_again.add(number)
            return number
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        return None

    def forget(self, count: int) -> None:
        """Forget all but the first so many objects."""
        for one in self.objects[count:]:
            del self._numbers[id(one)]
        del self.objects[count:]


@contextlib.contextmanager
def deeper() -> Iterator[None]:
    """Let values be nested as deeply as a program can that has raised its limit."""
    before = sys.getrecursionlimit()
    _set_recursion_limit(max(before, DEEPEST))
    try:
        yield
    finally:
        _set_recursion_limit(before)


def pack(value: Any, numbering: Numbering | None = None) -> Any:
    """Return a JSON value that `unpack` reads back.

    Raises:
        TypeError: a value that is not plain data.
    """
    numbering = numbering or Numbering()
    if value is None or value is True or value is False:
        return value
    fields = _fields_of(value)
    if numbering.exact and not _is_exact(value, fields):
        raise _not_plain(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < SMALL else ["int", int.__format__(number, "x")]
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, complex):
        return ["complex", [pack(value.real), pack(value.imag)]]
    if isinstance(value, str):
        text = str.__str__(value)
        return ["text", text.encode("utf-32-le", "surrogatepass").hex()] if _PAIR.search(text) else text
    if isinstance(value, bytes):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, _CHANGING):
        known = numbering.number_of(value)
        return pack_contents(value, numbering) if known is None else ["again", known]
    if fields is not None:
        return ["namedtuple", [type(value).__name__, fields, list(map(pack, tuple.__iter__(value), repeat(numbering)))]]
    for name, kind in (*_KINDS.items(), *_VIEWS.items()):
        if isinstance(value, kind):
            return [name, list(map(pack, kind.__iter__(value), repeat(numbering)))]  # type: ignore[attr-defined]
    if isinstance(value, range):
        return ["range", [pack(value.start), pack(value.stop), pack(value.step)]]
    if (builtin := _name_of_builtin(value)) is not None:
        return ["builtin", builtin]
    if isinstance(value, BaseException):
        return ["exception", pack_exception(value, lambda one: pack(one, numbering))]
    if isinstance(value, Foreign):
        return ["foreign", value.number]
    packed = pack_number_or_date(value)
    if packed is None:
        raise _not_plain(value)
    return packed


def pack_contents(value: Any, numbering: Numbering) -> Any:
    """Return what `pack` returns for an object that can change when it meets it first.

    Raises:
        TypeError: it holds a value that is not plain data.
    """
    if isinstance(value, bytearray):
        return ["bytearray", bytes(value).hex()]
    if isinstance(value, list):
        return ["list", list(map(pack, list.__iter__(value), repeat(numbering)))]
    if isinstance(value, set):
        return ["set", list(map(pack, set.__iter__(value), repeat(numbering)))]
    if isinstance(value, collections.deque):
        plain = collections.deque
        return ["deque", [list(map(pack, plain.__iter__(value), repeat(numbering))), plain.maxlen.__get__(value)]]
    items = []
    ordered = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    for pair in ordered.items(value):
        items.append(list(map(pack, pair, repeat(numbering))))
    if type(value) is collections.defaultdict:
        factory = value.default_factory
        if factory is None or _name_of_builtin(factory) is not None:
            return ["defaultdict", [items, pack(factory)]]
        if numbering.exact:
            raise _not_plain(factory)
    return [next((name for name, kind in _DICTIONARIES.items() if type(value) is kind), "dict"), items]


def _is_exact(value: Any, fields: list[str] | None) -> bool:
    kind = type(value)
    if fields is not None:
        own = {name for name in vars(kind) if not name.startswith("__")} - {*fields} - _OF_NAMED_TUPLES
        return not own and (kind.__bases__ == (tuple,) or is_of_the_library(kind))
    if isinstance(value, BaseException):
        return is_of_the_library(kind)
    return kind in _EXACT or kind is Foreign or Foreign in kind.__bases__ or kind.__module__ in MODULES


def _name_of_builtin(value: Any) -> str | None:
    """Return the name of a class or a constant of Python; None for anything else."""
    if isinstance(value, type) and vars(builtins).get(value.__name__) is value:
        return value.__name__
    return next((name for name, one in _BUILTIN.items() if value is one), None)


def _not_plain(value: Any) -> TypeError:
    return TypeError(f"a {type(value).__name__} is not plain data")


def _fields_of(value: Any) -> list[str] | None:
    """Return the names of the items of a named tuple, or of such a tuple of Python's library; None for anything else."""
    kind = type(value)
    if kind is tuple or not isinstance(value, tuple):
        return None
    fields = getattr(kind, "_fields", getattr(kind, "__match_args__", None) if is_of_the_library(kind) else None)
    if (kind.__module__, kind.__name__) == ("datetime", "IsoCalendarDate"):  # a class without a place of its own
        fields = ("year", "week", "weekday")
    if not isinstance(fields, tuple) or len(fields) != tuple.__len__(value) or len(set(fields)) != len(fields):
        return None
    names = [kind.__name__, *fields]
    good = all(isinstance(one, str) and one.isidentifier() and not keyword.iskeyword(one) for one in names)
    return [*fields] if good and not any(one.startswith("_") for one in fields) else None


def unpack(packed: Any, numbering: Numbering | None = None) -> Any:
    """Return the value that `pack` was given.

    Raises:
        ValueError: the JSON value was not made by `pack`.
    """
    numbering = numbering or Numbering()
    if packed is None or isinstance(packed, bool | int | float | str):
        return packed
    match packed:
        case ["int", str() as digits]:
            return int(digits, 16)
        case ["complex", [real, imaginary]]:
            return complex(unpack(real), unpack(imaginary))
        case ["bytes", str() as digits]:
            return bytes.fromhex(digits)
        case ["text", str() as digits]:
            return bytes.fromhex(digits).decode("utf-32-le", "surrogatepass")
        case ["again", int() as number] if 0 <= number < len(numbering.objects):
            return numbering.objects[number]
        case ["foreign", int() as number] if number in numbering.foreign:
            return numbering.foreign[number]
        case [str() as name, str() | list() as contents] if (empty := _empty(name, contents)) is not None:
            numbering.number_of(empty)
            fill(empty, packed, numbering)
            return empty
        case ["keys", list() as items]:
            return dict.fromkeys(_unpacked(items, numbering)).keys()
        case ["values", list() as items]:
            return dict(enumerate(_unpacked(items, numbering))).values()
        case ["items", list() as items]:
            return dict(_unpacked(items, numbering)).items()
        case ["namedtuple", [str() as name, list() as fields, list() as items]]:
            return collections.namedtuple(name, fields)(*_unpacked(items, numbering))
        case ["range", [start, stop, step]]:
            return range(unpack(start), unpack(stop), unpack(step))
        case ["builtin", str() as name] if name in _BUILTIN:
            return _BUILTIN[name]
        case ["builtin", str() as name] if isinstance(vars(builtins).get(name), type):
            return vars(builtins)[name]
        case ["exception", raised]:
            return unpack_exception(raised, lambda one: unpack(one, numbering))
        case [str() as name, list() as items] if name in _KINDS:
            return _KINDS[name](_unpacked(items, numbering))
    value = unpack_number_or_date(packed)
    if value is None:
        raise ValueError(f"not a packed value: {str(packed)[:80]}")
    return value


def _unpacked(items: list[Any], numbering: Numbering) -> Iterator[Any]:
    return map(unpack, items, repeat(numbering))


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


def fill(mine: Any, packed: Any, numbering: Numbering) -> None:
    """Give an object the contents that `pack_contents` returned.

    Raises:
        ValueError: they are not of its kind.
    """
    match packed:
        case ["bytearray", str() as digits] if isinstance(mine, bytearray):
            mine[:] = bytes.fromhex(digits)
        case ["list", list() as items] if isinstance(mine, list):
            mine[:] = _unpacked(items, numbering)
        case ["set", list() as items] if isinstance(mine, set):
            _replace(mine, mine.update, _unpacked(items, numbering))
        case ["deque", [list() as items, _]] if isinstance(mine, collections.deque):
            _replace(mine, mine.extend, _unpacked(items, numbering))
        case ["defaultdict", [list() as items, _]] | [str(), list() as items] if isinstance(mine, dict):
            pairs = list(map(unpack, chain.from_iterable(items), repeat(numbering)))
            mine.clear()
            for key, item in zip(pairs[::2], pairs[1::2], strict=True):
                mine[key] = item
        case _:
            raise ValueError(f"not the contents of a {type(mine).__name__}: {str(packed)[:80]}")


def _replace(mine: Any, add: Callable[[Iterator[Any]], None], items: Iterator[Any]) -> None:
    mine.clear()
    add(items)
