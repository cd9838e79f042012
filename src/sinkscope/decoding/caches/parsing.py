"""Cache policies as text, as ``--cache`` takes them: ``fast-dllm-dual``, ``block:keep=sinks,budget=64``.

Every class with a `CachePolicy.name` is found by itself: those in the modules of this package, and those that an installed package
declares as entry points of the group ``sinkscope.caches`` (a class, or a module with classes).
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sinkscope.argument_types import number_from
from sinkscope.decoding.caches.policy import CachePolicy, options_of
from sinkscope.documents import shown
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds

ENTRY_POINTS = "sinkscope.caches"
NOTHING = "none"
LARGEST = 1 << 31
"""Bound of the numbers among the options."""


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
            raise CallError(
                f"{kind.__qualname__}: expected a name of its own, found {shown(kind.name)}, which another policy has"
            )
        found[kind.name] = kind
    return MappingProxyType(dict(sorted(found.items())))


def parse_cache(text: str) -> CachePolicy | None:
    """Return the policy that a text stands for; None for ``none``.

    A policy is its name, and its options behind a colon, separated by commas: ``name=value`` for the fields of its class; a choice may be
    written as its value alone, and a switch as its name.

    Raises:
        CallError: no such policy or option; the message names those there are.
    """
    name, _, tail = text.strip().partition(":")
    if name == NOTHING and not tail:
        return None
    known = known_caches()
    if name not in known:
        raise CallError(
            f"no cache {shown(text)}; expected one of {', '.join([NOTHING, *known])}, with options as in block:every=8"
        )
    kind = known[name]
    given: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        option, value = _option(kind, text, piece)
        if given.get(option, value) != value:
            raise CallError(f"cache {shown(text)}: {option} is given twice")
        given[option] = value
    return kind(**given)


@functools.cache
def _hints_and_choices(kind: type[CachePolicy]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the type of each option of a policy, and the options that have each choice."""
    types = get_type_hints(kind)
    hints = {one.name: types[one.name] for one in options_of(kind)}
    choices: dict[str, list[str]] = {}
    for name, hint in hints.items():
        for value in get_args(hint) if get_origin(hint) is Literal else ():
            choices.setdefault(value, []).append(name)
    return hints, choices


def _option(kind: type[CachePolicy], text: str, piece: str) -> tuple[str, Any]:
    """Return the field that one piece of the options sets, and its value."""
    hints, choices = _hints_and_choices(kind)
    name, equals, value = piece.partition("=")
    if not equals and len(choices.get(piece, [])) > 1:
        raise CallError(
            f"cache {shown(text)}: {piece} is a value of {' and '.join(choices[piece])}; write {choices[piece][0]}={piece}"
        )
    if not equals and piece in choices:
        return choices[piece][0], piece
    if not equals and hints.get(piece) is bool:
        return piece, True
    if equals and name in hints:
        kinds = [one for one in (get_args(hints[name]) or (hints[name],)) if isinstance(one, type)]
        for number in [one for one in (int, float) if one in kinds]:
            try:
                below_zero = number is int and value.startswith("-")  # which the class refuses in its own words
                found = -number_from(value[1:], int) if below_zero else number_from(value, number)
            except ValueError:
                continue
            if not abs(found) <= LARGEST:
                raise CallError(
                    f"cache {shown(text)}: expected {name} as a number up to {LARGEST:,}, found {value[:20]}"
                )
            return name, found
        if name in choices.get(value, []):
            return name, value
        if str in kinds:
            return name, value
        if kinds == [bool] and value in ("True", "False"):
            return name, value == "True"
        expected = " or ".join(get_args(hints[name])) if get_origin(hints[name]) is Literal else "a number"
        raise CallError(f"cache {shown(text)}: expected {name} as {expected}, found {shown(value)}")
    options = ", ".join(f"{one}=…" for one in hints) or "none"
    raise CallError(f"cache {shown(text)}: {kind.name} has no option {shown(piece)}; its options: {options}")
