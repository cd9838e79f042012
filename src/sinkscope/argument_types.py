"""`checked`: public functions say in our words what an argument should have been, before any of it is used.

The check reads the annotations: numbers, text, paths, choices, lists, objects, functions and classes of our own, also within each other.
What other libraries and protocols describe is left to the function, which knows what may stand in their place; so is `Model`.
"""

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sinkscope.documents import describe
from sinkscope.errors import CallError

Function = TypeVar("Function", bound=Callable[..., Any])
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    Path: "a path",
    NoneType: "None",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}
NUMBERS: dict[Any, str] = {int: r"[0-9]+", float: r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|nan"}
"""How whole numbers from 0 upwards, and numbers, are written in texts."""
NUMBER_WORDS: dict[Any, str] = {int: "a whole number from 0 upwards", float: "a number"}
"""How messages name them."""
LARGEST = 1 << 63
"""Whole numbers from here on stand for no number that is measured."""
LONGEST_PATH, LONGEST_NAME = 4096, 255
"""Bytes that a path, and a name in it, can have."""
DEEPEST_PATH = 256
"""Names that a path can have: Python makes folders by recursion."""
LONGEST_LIST = 1 << 22
"""How many items a list or a range may have: each is looked at, and a range may be longer than its caller knows."""
_LISTS = (Sequence, Collection, list, tuple, Set, set, frozenset)


def number_from(text: str, kind: type) -> Any:
    """Return the number that a text writes in plain digits; Python would take underscores, spaces and other scripts' digits too.

    Args:
        kind: int or float.

    Raises:
        ValueError: the text is no number, or a larger one than there are.
    """
    found = kind(text) if re.fullmatch(NUMBERS[kind], text) else None
    if found is None or (found in (math.inf, -math.inf) and "inf" not in text):
        raise ValueError(f"expected a number in plain digits, found {text[:60]!r}")
    return found


def whole_number_from(text: str) -> int:
    """Return the whole number, below 0 or not, that a text writes in plain digits.

    Raises:
        ValueError: the text is no such number.
    """
    found = number_from(text.removeprefix("-"), int)
    return -found if text.startswith("-") else found


def checked(function: Function) -> Function:
    """Return a function that raises `CallError` for an argument of another type than its annotation says; of a class, its ``__init__``.

    Arrays with an axis of one name must have one size along it. Lists of numbers, and arrays of whole numbers where one of fractions is
    annotated, become such an array; numbers of NumPy become Python's.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)  # type: ignore[misc]
        return function  # type: ignore[return-value]
    signature = inspect.signature(function)
    arguments: dict[str, tuple[Any, bool, bool, bool]] = {}

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if not arguments:
            arguments.update(_arguments(function, signature))
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            return function(*given, **named)  # which says it in Python's words
        sizes: dict[str, tuple[int, str]] = {}
        for name, value in bound.arguments.items():
            hint, is_array, is_number, is_list = arguments[name]
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for one in value:
                    check_argument(name, one, hint)
            elif kind is not inspect.Parameter.VAR_KEYWORD:
                check_argument(name, value, hint)
            if is_array:
                bound.arguments[name] = array = _array(name, value, hint)
                _check_sizes(name, array, hint, sizes)
            elif is_number or isinstance(value, Integral):
                bound.arguments[name] = plain(value)
            elif is_list and getattr(value, "ndim", 0):
                bound.arguments[name] = list(cast(Any, value))  # whose emptiness can be asked for
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def plain(value: Any) -> Any:
    """Return a number or truth value of NumPy as Python's, which JSON and texts are made of; anything else as it is."""
    if isinstance(value, bool | int | Fraction) or type(value) is float:
        return value
    if fits(value, bool):
        return bool(value)
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _arguments(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, tuple[Any, bool, bool, bool]]:
    """Return of each argument its type, and whether it is an array, may be a number with a fraction or a truth value, or is a list."""
    hints = _hints(function)
    found = {}
    for name in signature.parameters:
        hint = hints.get(name, Any)
        is_array = getattr(getattr(hint, "array_type", None), "__module__", "") == "numpy"
        found[name] = (
            hint,
            is_array,
            hint is bool or float in _parts(hint),
            _asks_for_list(hint) and not _asks_for_array(hint),
        )
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's arguments; of an argument whose type is known to type checkers only, any."""
    try:
        return get_type_hints(function)
    except NameError:
        plain = inspect.unwrap(function)
        known = {name: hint for name, hint in plain.__annotations__.items() if not isinstance(hint, str)}
        for name, hint in plain.__annotations__.items():
            with contextlib.suppress(NameError, TypeError):
                known.setdefault(name, eval(hint, plain.__globals__) if isinstance(hint, str) else hint)
        return {"return": Any, **known}


def check_argument(name: str, value: Any, hint: Any) -> None:
    """Raise an error for a value of another type than a hint says.

    Raises:
        CallError: such a value, at any depth.
    """
    if isinstance(value, str | Path) and Path in _parts(hint) and not _may_be_path(str(value)):
        limit = (
            f" of at most {LONGEST_PATH} bytes and {DEEPEST_PATH} names, {LONGEST_NAME} bytes each"
            if len(str(value)) > LONGEST_NAME
            else ""
        )
        raise CallError(
            f"{name}: expected a path{limit}, found {in_words(str(value)) if str(value) else 'an empty text'}"
        )
    if hasattr(type(value), "is_nested") and cast(Any, value).is_nested:  # whose length cannot be asked for
        raise CallError(f"{name}: expected {_words(hint)}, found a nested tensor")
    if isinstance(value, range) and value[LONGEST_LIST:]:
        raise CallError(f"{name}: expected at most {LONGEST_LIST:,} numbers, found {value}")
    row = _asks_for_list(hint) and not _asks_for_array(hint) and getattr(value, "ndim", 0) == 1
    items: Any = value
    if (row or isinstance(value, list | tuple | set | frozenset)) and len(items) > LONGEST_LIST:
        raise CallError(f"{name}: expected at most {LONGEST_LIST:,} items, found {len(items):,}")
    if fits(value, hint):
        return
    inner = _parts(hint)
    for one in inner:  # a list of the right kind with a wrong item in it is told by the item
        if _is_row(one) and _is_list(value):
            kinds, items = get_args(one), list(value)
            if len(items) != len(kinds):
                raise CallError(f"{name}: expected {len(kinds)} items, found {len(items)}")
            for at, (item, kind) in enumerate(zip(items, kinds, strict=True)):
                check_argument(f"{name}[{at}]", item, kind)
        elif get_origin(one) in _LISTS and _is_list(value):
            item = (get_args(one) or (Any,))[0]
            at, wrong = next((at, other) for at, other in enumerate(value) if not fits(other, item))
            raise CallError(f"{name}[{at}]: expected {_words(item)}, found {in_words(wrong)}")
        if get_origin(one) in (Mapping, dict) and isinstance(value, Mapping):
            kind, item = get_args(one)
            for key, other in value.items():
                if not fits(key, kind):
                    raise CallError(f"{name}: expected {_words(kind)} as each key, found {in_words(key)}")
                check_argument(f"{name}[{key!r}]", other, item)
    raise CallError(f"{name}: expected {_words(hint)}, found {in_words(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of the type of a hint; of a type that is not known here, any is."""
    if hint is None or hint is NoneType:
        return value is None
    if type(value) is hint and hint is not int:
        return True
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return any(fits(value, one) for one in get_args(hint))
    if hint in (int, float):
        known = isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool | Fraction)
        return known and (hint is int or not isinstance(value, int) or abs(value) < LARGEST)
    if hint is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if hint is Path:
        return isinstance(value, os.PathLike)
    if hint in (str, bytes):
        return isinstance(value, hint)
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return isinstance(value, tuple({type(one) for one in inner})) and value in inner
    if _is_our_class(hint):
        return isinstance(value, hint)
    if isinstance(array := getattr(hint, "array_type", None), type):
        return (isinstance(value, array) and _has_axes(value, hint)) or (
            isinstance(value, Sequence) and not isinstance(value, str | bytes)
        )
    if origin is Mapping or origin is dict:
        return isinstance(value, Mapping) and (
            not inner or all(fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items())
        )
    if origin in _LISTS:
        if _is_row(hint):
            return _is_list(value) and len(items := list(value)) == len(inner) and all(map(fits, items, inner))
        items = value[:1] if isinstance(value, range) else value  # which may be longer than one can wait for
        return _is_list(value) and (not inner or inner[0] is Any or all(fits(one, inner[0]) for one in items))
    if origin is Iterable:
        return (
            hasattr(value, "__iter__")
            and not isinstance(value, str | bytes | Mapping)
            and getattr(value, "ndim", 1) > 0
        )
    if origin is Callable:
        return callable(value)
    return True


def _is_our_class(hint: Any) -> bool:
    """Return whether a hint is a class for which nothing else may stand in: one of sinkscope, or torch's dtype."""
    if not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return False
    return (hint.__module__.startswith("sinkscope.") and hint.__name__ != "Model") or (
        hint.__module__,
        hint.__name__,
    ) == ("torch", "dtype")


def _asks_for_list(hint: Any) -> bool:
    return any((get_origin(one) or one) in _LISTS for one in _parts(hint))


def _is_row(hint: Any) -> bool:
    """Return whether a hint is a tuple of a fixed number of items."""
    return get_origin(hint) is tuple and ... not in get_args(hint)


def _asks_for_array(hint: Any) -> bool:
    return any(hasattr(one, "array_type") for one in _parts(hint))


def _is_list(value: Any) -> TypeGuard[Iterable[Any]]:
    if isinstance(value, str | bytes | bytearray | Mapping) or getattr(value, "ndim", 1) == 0:
        return False
    return isinstance(value, Collection) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))


def _has_axes(array: Any, hint: Any) -> bool:
    """Return whether an array has as many axes as its annotation names."""
    return array.ndim == len(hint.dims) if hint.index_variadic is None else array.ndim >= len(hint.dims) - 1


def _array(name: str, value: Any, hint: Any) -> Any:
    """Return the array of an argument.

    Raises:
        CallError: its items are no such numbers, or do not make an array of these axes.
    """
    import numpy as np  # the sandbox of programs imports this module, and has no NumPy

    if np.ma.is_masked(value):
        raise CallError(
            f"{name}: expected {_words(hint)} without a mask, found values that are masked; fill them or cut them off first"
        )
    fractions, switches = "float64" in hint.dtypes, "bool" in hint.dtypes
    try:
        endless = isinstance(value, list | tuple) and any(
            isinstance(one, range) and one[LONGEST_LIST:] for one in value
        )
        array = np.asarray(None if endless else value)
    except (ValueError, TypeError, RuntimeError):  # lists of several lengths, sparse tensors, tensors without values
        array = np.asarray(None)
    if not _has_axes(array, hint) or (
        array.size and array.dtype.kind not in ("fiub" if fractions else "b" if switches else "iu")
    ):
        raise CallError(f"{name}: expected {_words(hint)}, found {array.dtype} {list(array.shape)}")
    return array.astype(np.float64) if fractions and (array.dtype.kind != "f" or array.itemsize < 4) else array


def _check_sizes(name: str, array: Any, hint: Any, sizes: dict[str, tuple[int, str]]) -> None:
    """Raise an error where an array and one before it have another size along an axis of one name.

    Args:
        sizes: {axis: its size and the argument that has it} of the arrays before it; those of this one are added.

    Raises:
        CallError: such an axis.
    """
    for axis, size in zip(reversed(hint.dim_str.split()), reversed(array.shape), strict=False):
        if not axis.isidentifier():  # any number of axes
            break
        expected, other = sizes.setdefault(axis, (size, name))
        if size != expected:
            raise CallError(f"{name}: expected {expected} along the axis {axis}, as {other} has, found {size}")


def _may_be_path(text: str) -> bool:
    """Return whether a file can have this name."""
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    names = name.split(b"/")
    return (
        b"\0" not in name
        and 0 < len(name) < LONGEST_PATH
        and max(map(len, names)) <= LONGEST_NAME
        and len(names) <= DEEPEST_PATH
    )


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(hint: Any) -> str:
    """Return in words what a hint asks for."""
    found = []
    for one in _parts(hint):
        origin, inner = get_origin(one) or one, get_args(one)
        if one in _WORDS:
            found.append(_WORDS[one])
        elif origin is Literal:
            found.append(
                " or ".join([", ".join(map(str, inner[:-1])), str(inner[-1])] if inner[1:] else map(str, inner))
            )
        elif origin is Mapping or origin is dict:
            found.append("an object by name")
        elif _is_row(one):
            found.append(f"a list of {len(inner)} items ({', '.join(map(_words, inner))})")
        elif origin in _LISTS or origin is Iterable:
            items = [_SEVERAL[item] for item in (_parts(inner[0]) if inner else ()) if item in _SEVERAL]
            found.append(f"a list of {' or '.join(items)}" if items else "a list")
        elif origin is Callable:
            found.append("a function")
        elif isinstance(array := getattr(one, "array_type", None), type):
            found.append(f"{array.__name__} [{one.dim_str}]")
        else:
            found.append(getattr(one, "__name__", str(one)))
    return " or ".join(dict.fromkeys(found))


def in_words(value: Any) -> str:
    """Return in words what was found; of an array its type and shape."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bool | int | float):
        return describe(value)
    if getattr(value, "is_nested", False) is True:  # a tensor of torch without a shape
        return "nested tensor"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        return type(value).__name__
    return f"{type(value).__name__} {str(dtype).removeprefix('torch.')} {list(shape)}"
