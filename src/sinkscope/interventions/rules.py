"""Rules as text, as ``--hide`` takes them: ``top:1``, ``random:5@seed=2``, ``top:1@current,last_row``."""

import dataclasses
import re
from typing import Any

from sinkscope.errors import CallError
from sinkscope.interventions.canvas import GROUPS
from sinkscope.interventions.composition import Composed, compose
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.mass_matched_keys import MassMatchedKeys
from sinkscope.interventions.next_ranks import NextRanks
from sinkscope.interventions.persistent_random_keys import PersistentRandomKeys
from sinkscope.interventions.random_keys import RandomKeys
from sinkscope.interventions.same_class_keys import SameClassKeys
from sinkscope.interventions.sink_token import HideSinkToken
from sinkscope.interventions.sinks_above import HideSinksAbove
from sinkscope.interventions.top_sinks import HideTopSinks
from sinkscope.interventions.window import KeepWindow

RULES: dict[str, tuple[str, type[Intervention]]] = {
    "top": ("K", HideTopSinks),
    "random": ("K", RandomKeys),
    "mass": ("K", MassMatchedKeys),
    "persistent": ("K", PersistentRandomKeys),
    "ranks": ("K", NextRanks),
    "class": ("K", SameClassKeys),
    "above": ("E", HideSinksAbove),
    "window": ("SINKS+RECENT", KeepWindow),
    "sink-token": ("", HideSinkToken),
}
"""Name → (what stands behind the colon, nothing where there is none, the class)."""

WORDS: dict[str, tuple[str, Any]] = {
    "previous": ("observe", "previous"),
    "current": ("observe", "current"),
    "local": ("measured", "local"),
    "hidden": ("measured", "hidden"),
    "clean": ("measured", "clean"),
    "columns": ("decide", "columns"),
    "last_row": ("decide", "last_row"),
    "head": ("scope", "head"),
    "kv_head": ("scope", "kv_head"),
    "layer": ("scope", "layer"),
    "only_sinks": ("only_sinks", True),
    "percent": ("unit", "percent"),
    "mask": ("effect", "mask"),
    "zero": ("effect", "zero"),
}
LISTS = ("layers", "steps", "keys", "queries")


def parse_rule(text: str) -> Intervention | Composed:
    """The intervention a rule stands for.

    ``none``, ``top:K``, ``random:K``, ``mass:K``, ``persistent:K``, ``ranks:K``, ``class:K``, ``above:E``,
    ``window:SINKS+RECENT``, ``sink-token``, with options behind ``@``, separated by commas: the words of `WORDS`, ``seed=N``, and
    ``layers=``, ``steps=``, ``keys=``, ``queries=`` with numbers such as ``0-3+7`` or, for keys and queries,
    ``masked``, ``unmasked``, ``prompt``, ``answer``.

    Raises:
        CallError: names the rules or options there are.
    """
    head, _, tail = text.strip().partition("@")
    name, colon, amount = head.partition(":")
    if head == "none" and not tail:
        return compose()
    if name not in RULES or bool(colon) != bool(RULES[name][0]):
        known = ", ".join(["none", *(f"{rule}:{shape}" if shape else rule for rule, (shape, _) in RULES.items())])
        raise CallError(f"no rule {text!r}; expected one of {known}, with options behind @ as in top:1@current")
    shape, kind = RULES[name]
    return kind(*_amounts(text, name, shape, amount), **_options(text, name, kind, tail))


def split_rules(text: str) -> list[str]:
    """Rules separated by commas, each once and with its options: ``none,top:1@current,last_row`` → ``none``, ``top:1@current,last_row``."""
    rules: list[str] = []
    for piece in filter(None, map(str.strip, text.split(","))):
        bare = piece.partition("@")[0] in ("none", *(name for name, (shape, _) in RULES.items() if not shape))
        if rules and "@" in rules[-1] and ":" not in piece and not bare:
            rules[-1] += f",{piece}"
        else:
            rules.append(piece)
    return list(dict.fromkeys(rules))


def _amounts(text: str, name: str, shape: str, amount: str) -> list[Any]:
    if not shape:
        return []
    try:
        if shape == "E":
            return [float(amount)]
        parts = amount.split("+") if "+" in shape else [amount]
        if len(parts) != len(shape.split("+")) or not all(re.fullmatch(r"[0-9]+", part) for part in parts):
            raise ValueError
        return [int(part) for part in parts]
    except ValueError:
        raise CallError(f"rule {text!r}: expected {name}:{shape}, found {amount!r} behind the colon") from None


def _options(text: str, name: str, kind: type[Intervention], tail: str) -> dict[str, Any]:
    fields = {field.name for field in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        word, equals, value = piece.partition("=")
        if equals and word in LISTS:
            key, chosen = word, value if value in GROUPS else _numbers(text, word, value)
        elif equals and word == "seed" and re.fullmatch(r"[0-9]+", value):
            key, chosen = word, int(value)
        elif not equals and word in WORDS:
            key, chosen = WORDS[word]
        else:
            key, chosen = "", None
        if key not in fields:
            known = [one for one, (option, _) in WORDS.items() if option in fields]
            known += [f"{one}=…" for one in ("seed", *LISTS) if one in fields]
            raise CallError(f"rule {text!r}: {name} has no option {piece!r}; expected some of {', '.join(known)}")
        if key in found and found[key] != chosen:
            raise CallError(f"rule {text!r}: {key} is given twice")
        found[key] = chosen
    return found


def _numbers(text: str, name: str, value: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in value.split("+"):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if ends is None:
            raise CallError(f"rule {text!r}: expected {name} as numbers such as 0-3+7, found {value!r}")
        numbers += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(numbers)
