"""What each cache policy is, in words and as data, from its class: ``compare-caches --definitions`` prints it."""

import inspect
import re
import sys
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sinkscope.decoding.caches.parsing import known_caches
from sinkscope.decoding.caches.policy import CachePolicy


def cache_definitions() -> list[dict[str, Any]]:
    """Return name, what it does, source and options of every policy, those of installed packages included."""
    return [
        {
            "name": name,
            "does": _first_line(kind),
            "source": _source(kind),
            "options": [_option(kind, one) for one in fields(kind)],
        }  # type: ignore[arg-type]
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


def _first_line(kind: type[CachePolicy]) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _source(kind: type[CachePolicy]) -> str | None:
    """Return the paper and the code that a policy's module names, in brackets behind its title; None where it names none."""
    found = re.match(r"[^\n]*?(\(.*?\))\.?\n", sys.modules[kind.__module__].__doc__ or "", flags=re.DOTALL)
    return found.group(1).replace("\n", " ") if found else None


def _option(kind: type[CachePolicy], field: Any) -> dict[str, Any]:
    """Return name, default, choices and meaning of an option; the meaning stands in the docstring of the class or of one above."""
    hint = get_type_hints(kind)[field.name]
    told = "\n".join(inspect.getdoc(one) or "" for one in kind.__mro__[: kind.__mro__.index(CachePolicy)])
    described = re.search(rf"^    {field.name}: (.*?)(?=^    \w|^\w|\Z)", told, re.MULTILINE | re.DOTALL)
    return {
        "name": field.name,
        "default": None if field.default is MISSING else field.default,
        "choices": list(get_args(hint)) if get_origin(hint) is Literal else None,
        "does": " ".join(described.group(1).replace("``", "").split()) if described else "",
    }
