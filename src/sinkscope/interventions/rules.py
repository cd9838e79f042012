"""Rules as text, as ``--hide`` takes them: ``top:1``, ``random:5@seed=2``, ``top:1@current,last_row``.

Every class with a `Intervention.rule` in this package, or in an entry point of the group, is found by itself.
"""

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.interventions.intervention import NOTHING, Composed, Intervention, arguments_of, compose, hints_of
from sinkscope.interventions.step_canvas import GROUPS

ENTRY_POINTS = "sinkscope.interventions"


@functools.cache
def known_rules() -> Mapping[str, type[Intervention]]:
    """Return the class of every rule by its word, in alphabetical order; raise CallError for two rules of one word."""
    expected = "an Intervention with a `rule`, or a module with some"
    found, has_text = dict[str, type[Intervention]](), lambda kind: bool(vars(kind).get("rule"))
    for kind in find_kinds(ENTRY_POINTS, Intervention, has_text, ENTRY_POINTS, expected):
        word = kind.rule.partition(":")[0]
        if word in (NOTHING, *found):
            raise CallError(f"{kind.__qualname__}: expected a word that no other rule has, found {word!r}")
        found[word] = kind
    return MappingProxyType(dict(sorted(found.items())))


def known_controls() -> dict[str, bool]:
    """Return for the word of every control whether it draws at random, and so takes a seed."""
    return {word: "seed" in hints_of(kind) for word, kind in known_rules().items() if kind.control}


def parse_rule(text: str | Intervention | Composed) -> Intervention | Composed:
    """Return the intervention that a rule stands for; one that is an intervention already as it is.

    A rule is a word of `known_rules` and its arguments, such as ``top:1`` or ``window:4+64``, or ``none``, which hides
    nothing. Options follow ``@``, separated by commas: the fields of the rule's class. A choice is written as its value
    (``current``), a switch as its name (``only_sinks``), a number as ``seed=2``; ``layers=``, ``steps=``, ``keys=``,
    ``queries=`` take numbers such as ``0-3+7``, the last two also ``masked``, ``unmasked``, ``prompt``, ``answer``;
    ``heads=`` takes layers and heads such as ``5.1+0.5``.
    """
    if not isinstance(text, str):
        return text
    head, _, tail = text.strip().partition("@")
    word, colon, arguments = head.partition(":")
    if head == NOTHING and not tail:
        return compose()
    kind = known_rules().get(word)
    if kind is None or (colon and ":" not in kind.rule):
        known = ", ".join([NOTHING, *(one.rule for one in known_rules().values())])
        raise CallError(f"no rule {text!r}; expected one of {known}, with options behind @ as in top:1@current")
    hints, names = hints_of(kind), arguments_of(kind)
    try:
        parts = [] if not names else [arguments] if len(names) == 1 else arguments.split("+")
        readers = [hints[name] if hints[name] in (int, float) else _read_places for name in names]
        given = [read(part) for read, part in zip(readers, parts, strict=True)]
    except ValueError:
        raise CallError(f"rule {text!r}: expected {kind.rule}, found {arguments!r} behind the colon") from None
    words, options_of = dict[str, tuple[str, Any]](), dict[str, Any]()
    for name in (field.name for field in dataclasses.fields(kind) if field.kw_only and field.init):
        if get_origin(hints[name]) is Literal:
            words |= {value: (name, value) for value in get_args(hints[name])}
        elif hints[name] is bool:
            words[name] = name, True
        elif name in LISTS or hints[name] in (int, float):
            options_of[name] = LISTS.get(name, hints[name])
    options: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        name, equals, value = piece.partition("=")
        if not (name in options_of if equals else name in words):
            known = ", ".join([*words, *(f"{one}=…" for one in options_of)])
            raise CallError(f"rule {text!r}: {kind.rule} has no option {piece!r}; expected some of {known}")
        try:
            name, chosen = (name, options_of[name](value)) if equals else words[name]
        except ValueError:
            example = "5.1+0.5" if name == "heads" else "0-3+7" if name in LISTS else "2"
            raise CallError(f"rule {text!r}: {name}: expected numbers such as {example}, found {value!r}") from None
        if options.setdefault(name, chosen) != chosen:
            raise CallError(f"rule {text!r}: {name} is given twice, as {options[name]} and as {chosen}; give one")
    return kind(*given, **options)


def split_rules(text: str) -> list[str]:
    """Return the rules of a list, each once, with their options: ``none,top:1@current,last_row`` has two."""
    rules: list[str] = []
    for piece in filter(None, map(str.strip, text.split(","))):
        begins = piece == NOTHING or ":" in piece or "@" in piece or piece in known_rules()
        if rules and "@" in rules[-1] and not begins:
            rules[-1] += f",{piece}"
        else:
            rules.append(piece)
    return list(dict.fromkeys(rules))


def canonical_rule(text: str | Intervention | Composed) -> str:
    """Return the one text of a rule that may be written in several; a seed is always written."""
    return str(parse_rule(text))


def _read_places(value: str) -> str | tuple[int, ...]:
    if value in GROUPS:
        return value
    numbers: list[int] = []
    for part in value.split("+"):
        low, _, high = part.partition("-")
        if not range(int(low), int(high or low) + 1):
            raise ValueError(part)
        numbers += range(int(low), int(high or low) + 1)
    return tuple(numbers)


def _read_heads(value: str) -> tuple[tuple[int, int], ...]:
    pairs = [part.split(".") for part in value.split("+")]
    return tuple((int(layer), int(head)) for layer, head in pairs)


LISTS = {**dict.fromkeys(("layers", "steps", "keys", "queries"), _read_places), "heads": _read_heads}
