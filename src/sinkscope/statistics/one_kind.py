"""What traces must share to be the prompts of one analysis: their model, whose attention they hold, and how it came
about.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sinkscope.errors import CallError
from sinkscope.traces.format import hidden_rules


def same_model(first: tuple[Any, Any, Any] | None, model: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Return name, weight hash and config hash of the model, of the first trace that says.

    Raises:
        CallError: this trace is of another one.
    """
    found = (model.get("name"), model.get("weight_hash"), model.get("config_hash"))
    if found[1] is None:
        return first
    for at, what in ((1, "weights"), (2, "config.json")):
        if first is not None and first[at] and found[at] and first[at] != found[at]:
            models = " and ".join(f"{one[0]} ({what} {str(one[at])[:12]}…)" for one in (first, found))
            raise CallError(f"expected traces of one model, found {models}. Analyse each model by itself")
    return found if first is None or found[2] else first


@dataclass(frozen=True)
class Kind:
    """The kind of a trace: whose attention it holds, the rules that hid keys (two seeds of a rule are one kind), the
    cache, whether guidance computed a second canvas, and the dtype of the weights; None where it does not say.
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
    stack, source, sampler = manifest.get("stack"), manifest.get("attends_to"), manifest.get("sampler") or {}
    whose = f"{stack or 'the model'}{'' if stack == source else ' to ' + (source or 'states of a caller')}"
    rules = tuple(re.sub(r"@seed=\d+|,? ?\bseed=\d+", "", rule) for rule in hidden_rules(manifest))
    cache, guided = str(sampler.get("cache") or "none"), bool(sampler.get("guidance"))
    found = Kind(whose if "stack" in manifest else None, rules, cache, guided, manifest.get("dtype"))
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
