"""Cache policies as text, as ``--cache`` takes them (``fast-dllm-dual``, ``block:keep=sinks,budget=64``), and as data.

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
from typing import Any, get_args, get_type_hints

from sinkscope.decoding.caches.policy import CachePolicy
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.runs.files import validated

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
    class; a choice may be written as its value alone.

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
        option, equals, value = piece.partition("=")
        owners = [option] if equals else [one for one, hint in hints.items() if piece in get_args(hint)]
        if len(owners) != 1 or owners[0] not in hints:
            options = ", ".join(f"{one}=…" for one in hints if not owners[1:] or one in owners) or "none"
            raise CallError(f"cache {text!r}: {name} has no option {piece!r}; its options: {options}")
        wanted = validated(hints[owners[0]], value if equals else piece, f"cache {text!r}: {owners[0]}", CallError)
        if given.setdefault(owners[0], wanted) != wanted:
            raise CallError(f"cache {text!r}: {owners[0]} is given twice")
    return known[name](**given)


def _hints(kind: type[CachePolicy]) -> dict[str, Any]:
    types = get_type_hints(kind)
    return {one.name: types[one.name] for one in fields(kind)}


def cache_definitions() -> list[dict[str, Any]]:
    """Return name, purpose, source and options of every policy, those of installed packages included."""
    found = []
    for name, kind in known_caches().items():
        # The paper and the code stand in brackets behind the title of a policy's module.
        module = sys.modules[kind.__module__].__doc__ or ""
        source = re.match(r"[^\n]*?(\(.*?\))\.?\n", module, flags=re.DOTALL)
        found.append(
            {
                "name": name,
                "does": " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()),
                "source": source.group(1).replace("\n", " ") if source else None,
                "options": [_definition(kind, one.name, one.default) for one in fields(kind)],
            }
        )
    return found


def _definition(kind: type[CachePolicy], name: str, default: Any) -> dict[str, Any]:
    """Return name, default, choices and meaning of an option, from the docstring of the class or one above."""
    docs = "\n".join(inspect.getdoc(one) or "" for one in kind.__mro__[: kind.__mro__.index(CachePolicy)])
    meaning = re.search(rf"^    {name}: (.*?)(?=^    \w|^\w|\Z)", docs, re.MULTILINE | re.DOTALL)
    choices = [one for one in get_args(_hints(kind)[name]) if isinstance(one, str)] or None
    does = " ".join(meaning.group(1).replace("``", "").split()) if meaning else ""
    return {"name": name, "default": default, "choices": choices, "does": does}


def definitions_text() -> str:
    """Return `cache_definitions` as lines of text."""
    lines = []
    for one in cache_definitions():
        lines.append(f"{one['name']}: {one['does']}" + (f" {one['source']}" if one["source"] else ""))
        for option in one["options"]:
            choices = f" one of {', '.join(option['choices'])};" if option["choices"] else ""
            lines.append(f"    {option['name']}={option['default']}:{choices} {option['does']}")
    return "\n".join(lines)
