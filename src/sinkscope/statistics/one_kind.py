"""What traces must share to be the prompts of one analysis besides their model: whose attention they hold, and how it
came about.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sinkscope.errors import CallError
from sinkscope.traces.format import hidden_rules


@dataclass(frozen=True)
class Kind:
    """The kind of a trace.

    Attributes:
        stack: whose attention it holds, None where it does not say.
        hidden: the rules that hid keys; two seeds of a rule are one kind.
        cache: of keys and values.
        guided: whether a canvas without the prompt was computed beside each.
        dtype: of the weights in memory, None where it does not say.
    """

    stack: str | None
    hidden: tuple[str, ...]
    cache: str
    guided: bool
    dtype: str | None


def same_kind(first: Kind | None, manifest: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the first trace that says of what kind it is.

    Raises:
        CallError: this trace is of another kind.
    """
    if not manifest:
        return first
    found = _kind_of(manifest)
    if first is None:
        return found
    for name, one, other in (
        ("one stack's attention", first.stack or found.stack, found.stack or first.stack),
        ("keys hidden in all traces or in none", bool(first.hidden), bool(found.hidden)),
        ("one rule of hiding", ", ".join(first.hidden), ", ".join(found.hidden)),
        ("one cache", first.cache, found.cache),
        ("guidance in all traces or in none", first.guided, found.guided),
        ("one dtype", first.dtype or found.dtype, found.dtype or first.dtype),
    ):
        if one != other:
            advice = "analyse each kind by itself, or compare them (--versus)"
            raise CallError(f"expected {name}, found {one} and {other}; {advice}")
    return replace(first, stack=first.stack or found.stack, dtype=first.dtype or found.dtype)


def _kind_of(manifest: Mapping[str, Any]) -> Kind:
    stack, source, sampler = manifest.get("stack"), manifest.get("attends_to"), manifest.get("sampler") or {}
    whose = (
        f"{stack or 'the model'}{'' if stack == source else ' to ' + (source or 'states of a caller')}"
        if "stack" in manifest
        else None
    )
    rules = tuple(re.sub(r"@seed=\d+|,? ?\bseed=\d+", "", rule) for rule in hidden_rules(manifest))
    return Kind(whose, rules, str(sampler.get("cache") or "none"), bool(sampler.get("guidance")), manifest.get("dtype"))
