"""Cache policies as text, as ``--cache`` takes them: ``fast-dllm-dual``, ``block:keep=sinks,budget=64``; and their
definitions as data.

Every class with a `CachePolicy.name` is found by itself: those in the modules of this package, and those that an
installed package declares as entry points of the group ``sinkscope.caches`` (a class, or a module with classes).
"""

import functools
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sinkscope.decoding.caches.policy import CachePolicy
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds

ENTRY_POINTS = "sinkscope.caches"
NOTHING = "none"


@functools.cache
def known_caches() -> Mapping[str, type[CachePolicy]]:
    """Return the class of every policy by its name, in alphabetical order.

    Raises:
        CallError: two policies of one name, or an entry point that brings no policy.
    """
    expected = "a CachePolicy with a `name`, or a module with some"
    found: dict[str, type[CachePolicy]] = {}
    for kind in find_kinds(
        "sinkscope.decoding.caches", CachePolicy, lambda kind: bool(vars(kind).get("name")), ENTRY_POINTS, expected
    ):
        if kind.name in (NOTHING, *found):
            raise CallError(f"{kind.__qualname__}: expected a new name, found {kind.name!r}, which another policy has")
        found[kind.name] = kind
    return MappingProxyType(dict(sorted(found.items())))


def parse_cache(text: str) -> CachePolicy | None:
    """Return the policy that a text stands for; None for ``none``.

    A policy is its name, and its options behind a colon, separated by commas: ``name=value`` for the fields of its
    class; a choice may be written as its value alone, and a switch as its name.

    Raises:
        CallError: no such policy or option; the message names those there are.
    """
    name, _, tail = text.strip().partition(":")
    if name == NOTHING and not tail:
        return None
    known = known_caches()
    if name not in known:
        raise CallError(
            f"no cache {text!r}; expected one of {', '.join([NOTHING, *known])}, with options as in block:every=8"
        )
    hints = _hints(known[name])
    given: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        option, value = _option(hints, piece)
        if option not in hints:
            options = ", ".join(f"{one}=…" for one in hints) or "none"
            raise CallError(f"cache {text!r}: {name} has no option {piece!r}; its options: {options}")
        if given.get(option, value) != value:
            raise CallError(f"cache {text!r}: {option} is given twice")
        try:
            given[option] = _value(hints[option], value)
        except ValueError as error:
            raise CallError(
                f"cache {text!r}: expected {option} as {_expected(hints[option])}, found {value!r}"
            ) from error
    return known[name](**given)


def _hints(kind: type[CachePolicy]) -> dict[str, Any]:
    types = get_type_hints(kind)
    return {one.name: types[one.name] for one in fields(kind)}


def _choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()


def _option(hints: Mapping[str, Any], piece: str) -> tuple[str, str]:
    """Return the field that one piece of the options sets, and its value as text; "" for a field that is not known."""
    name, equals, value = piece.partition("=")
    if equals:
        return name, value
    if hints.get(piece) is bool:
        return piece, "True"
    owners = [one for one, hint in hints.items() if piece in _choices(hint)]
    if len(owners) > 1:
        raise CallError(f"{piece} is a value of {' and '.join(owners)}; write {owners[0]}={piece}")
    return (owners[0] if owners else ""), piece


def _value(hint: Any, text: str) -> Any:
    """Return a value of a type from its text; a ValueError where it is none."""
    if choices := _choices(hint):
        return choices[choices.index(text)]
    kinds = get_args(hint) or (hint,)
    if bool in kinds:
        return ("False", "True").index(text) == 1
    return next(kind for kind in (int, float, str) if kind in kinds)(text)


def _expected(hint: Any) -> str:
    return " or ".join(_choices(hint)) or "a number"


def cache_definitions() -> list[dict[str, Any]]:
    """Return name, what it does, source and options of every policy, those of installed packages included."""
    return [
        {
            "name": name,
            "does": " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()),
            "source": _source(kind),
            "options": [_definition(kind, one) for one in fields(kind)],
        }
        for name, kind in known_caches().items()
    ]


def definitions_text() -> str:
    """Return `cache_definitions` as lines of text."""
    lines = []
    for one in cache_definitions():
        lines.append(f"{one['name']}: {one['does']}" + (f" {one['source']}" if one["source"] else ""))
        for option in one["options"]:
            choices = f" one of {', '.join(option['choices'])};" if option["choices"] else ""
            lines.append(f"    {option['name']}={option['default']}:{choices} {option['does']}")
    return "\n".join(lines)


def _source(kind: type[CachePolicy]) -> str | None:
    """Return the paper and the code in brackets behind the title of a policy's module; None without."""
    found = re.match(r"[^\n]*?(\(.*?\))\.?\n", sys.modules[kind.__module__].__doc__ or "", flags=re.DOTALL)
    return found.group(1).replace("\n", " ") if found else None


def _definition(kind: type[CachePolicy], field: Any) -> dict[str, Any]:
    """Return name, default, choices and meaning of an option, from the docstring of the class or one above."""
    docs = "\n".join(inspect.getdoc(one) or "" for one in kind.__mro__[: kind.__mro__.index(CachePolicy)])
    meaning = re.search(rf"^    {field.name}: (.*?)(?=^    \w|^\w|\Z)", docs, re.MULTILINE | re.DOTALL)
    return {
        "name": field.name,
        "default": field.default,
        "choices": list(_choices(_hints(kind)[field.name])) or None,
        "does": " ".join(meaning.group(1).replace("``", "").split()) if meaning else "",
    }
