"""Rules as text, as ``--hide`` takes them: ``top:1``, ``random:5@seed=2``, ``top:1@current,last_row``.

Every class with a `Intervention.rule` is found by itself: those in the modules of this package, and those that an
installed package declares as entry points of the group ``sinkscope.interventions`` (a class, or a module with classes).
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sinkscope.argument_types import NUMBER_WORDS, NUMBERS
from sinkscope.documents import shown
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.interventions.intervention import Composed, Intervention, compose
from sinkscope.interventions.step_canvas import GROUPS

ENTRY_POINTS = "sinkscope.interventions"
NOTHING = "none"
MOST = 1 << 20
"""Bound of the layers, steps, keys and queries that a rule names."""
MOST_RULES = 1000
LONGEST_RULE = 1 << 20
LISTS = ("layers", "steps", "keys", "queries", "heads")


@functools.cache
def known_rules() -> Mapping[str, type[Intervention]]:
    """Return the class of every rule by its word, in alphabetical order.

    Raises:
        CallError: two rules of one word, or an entry point that brings no rule.
    """
    expected = "an Intervention with a `rule`, or a module with some"
    found: dict[str, type[Intervention]] = {}
    for kind in find_kinds(
        "sinkscope.interventions", Intervention, lambda kind: bool(vars(kind).get("rule")), ENTRY_POINTS, expected
    ):
        if not isinstance(kind.rule, str) or not re.fullmatch(r"[A-Za-z][\w-]*", word := kind.rule.partition(":")[0]):
            expected = "a word of letters, digits, _ and -, behind it : and the names of its arguments, if any, such as 'top:K'"
            raise CallError(f"{kind.__qualname__}.rule: expected {expected}, found {shown(kind.rule)}")
        if word in (NOTHING, *found):
            other = "the rule that hides nothing" if word == NOTHING else found[word].__qualname__
            raise CallError(f"{kind.__qualname__}: expected a word of its own, found {word!r}, which is {other}")
        found[word] = kind
    return MappingProxyType(dict(sorted(found.items())))


def known_controls() -> dict[str, bool]:
    """Return for the word of every control whether it draws at random, and so takes a seed."""
    return {word: "seed" in _option_fields(kind) for word, kind in known_rules().items() if kind.control}


def parse_rule(text: str) -> Intervention | Composed:
    """Return the intervention that a rule stands for.

    A rule is a word of `known_rules` and its arguments, such as ``top:1`` or ``window:4+64``, or ``none``, which hides
    nothing. Options follow ``@``, separated by commas. They are the fields of the rule's class: a choice is written as
    its value (``current``), a switch as its name (``only_sinks``), a number as ``seed=2``; ``layers=``, ``steps=``,
    ``keys=``, ``queries=`` take numbers such as ``0-3+7``, the last two also ``masked``, ``unmasked``, ``prompt``,
    ``answer``; ``heads=`` takes layers and heads such as ``5.1+0.5``.

    Raises:
        CallError: no such rule, argument or option; the message names those there are.
    """
    if len(text) > LONGEST_RULE:
        raise CallError(f"rule {text[:60]!r}…: expected at most {LONGEST_RULE:,} characters, found {len(text):,}")
    for seed, digits in re.findall(r"(seed=)?(?<![.0-9])0*([0-9]+)", text):
        if len(digits) > (most := 18 if seed else 9):
            raise CallError(
                f"rule {text[:60]!r}: expected numbers up to {10**most - 1:,}, found one of {len(digits)} digits"
            )
    head, _, tail = text.strip().partition("@")
    word, colon, arguments = head.partition(":")
    if head == NOTHING and not tail:
        return compose()
    rules = known_rules()
    if word in rules and not colon and ":" in rules[word].rule:
        raise CallError(f"rule {shown(text)}: {word} needs {rules[word].rule.partition(':')[2]}: {rules[word].rule}")
    if word not in rules or bool(colon) != (":" in rules[word].rule):
        known = ", ".join([NOTHING, *(kind.rule for kind in rules.values())])
        raise CallError(f"no rule {shown(text)}; expected one of {known}, with options behind @ as in top:1@current")
    kind = rules[word]
    try:
        given = kind.read_arguments(arguments) if colon else ()
    except ValueError:
        kinds = "".join(
            f"{', ' if number else '; '}{name} is {one}" for number, (name, one) in enumerate(kind.arguments().items())
        )
        raise CallError(
            f"rule {shown(text)}: expected {kind.rule}, found {arguments!r} behind the colon{kinds}"
        ) from None
    return kind(*given, **_options(text, word, kind, tail))


def split_rules(text: str) -> list[str]:
    """Return rules separated by commas, each once and with its options: ``none,top:1@current,last_row`` has two.

    A piece belongs to the options of the rule before it unless it begins a rule itself.

    Raises:
        CallError: more than `MOST_RULES`.
    """
    rules: list[str] = []
    for piece in filter(None, map(str.strip, text.split(","))):
        bare = piece.partition("@")[0] in (
            NOTHING,
            *(word for word, kind in known_rules().items() if ":" not in kind.rule),
        )
        if rules and "@" in rules[-1] and ":" not in piece and not bare:
            rules[-1] += f",{piece}"
        else:
            rules.append(piece)
    if len(rules) > MOST_RULES:
        raise CallError(f"rules: expected at most {MOST_RULES:,}, found {len(rules):,}; divide them over several runs")
    return list(dict.fromkeys(rules))


def canonical_rule(text: str) -> str:
    """Return the one text of a rule that may be written in several: ``top:1@queries=0-1,local,current`` is ``top:1@current,queries=0-1``.

    Numbers have no zeros in front, options that change nothing are left out, words stand before ``name=value``. A seed
    is always written.

    Raises:
        CallError: no such rule, see `parse_rule`.
    """
    rule = parse_rule(text)
    if isinstance(rule, Composed):
        return NOTHING
    kind, arguments = type(rule), text.strip().partition("@")[0].partition(":")[2]
    if ":" in kind.rule and kind.read_arguments.__func__ is Intervention.read_arguments.__func__:  # type: ignore[attr-defined]
        given = [field.name for field in dataclasses.fields(kind) if field.init and not field.kw_only]
        arguments = "+".join(_number_text(getattr(rule, name)) for name in given[: kind.rule.count("+") + 1])
    options = ",".join(_option_texts(rule))
    head = kind.rule.partition(":")[0] + (f":{arguments}" if ":" in kind.rule else "")
    found = f"{head}@{options}" if options else head
    return found if parse_rule(found) == rule else text.strip()


def _option_texts(rule: Intervention) -> list[str]:
    """Return the options of a rule that differ from their defaults, and its seed: words, then values, its own before every rule's."""
    words, values = list[str](), list[str]()
    fields = {field.name: field for field in dataclasses.fields(rule) if field.kw_only and field.init}
    everyones = {field.name for field in dataclasses.fields(Intervention)}
    for name in sorted(fields, key=everyones.__contains__):
        value, plain = getattr(rule, name), fields[name].default
        if value == plain and name != "seed":
            continue
        if isinstance(value, str) and name not in LISTS:
            words.append(value)
        elif isinstance(value, bool):
            words.append(name)
        else:
            values.append(f"{name}={_value_text(name, value)}")
    return words + values


def _value_text(name: str, value: Any) -> str:
    if name == "heads":
        return "+".join(f"{layer}.{head}" for layer, head in value)
    if name not in LISTS or isinstance(value, str):
        return _number_text(value)
    ranges: list[list[int]] = []
    for number in value:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "+".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _number_text(value: Any) -> str:
    return (
        str(value).removesuffix(".0").replace("e+", "e") if isinstance(value, float) else str(value)
    )  # a + parts arguments


def _options(text: str, word: str, kind: type[Intervention], tail: str) -> dict[str, Any]:
    hints = get_type_hints(kind)
    fields = _option_fields(kind)
    words = _option_words(fields, hints)
    found: dict[str, Any] = {}
    for piece in filter(None, map(str.strip, tail.split(","))):
        name, equals, value = piece.partition("=")
        if equals and name == "heads" and name in fields:
            key, chosen = name, _read_heads(text, value)
        elif equals and name in LISTS and name in fields:
            key, chosen = name, value if value in GROUPS else _read_numbers(text, name, value)
        elif equals and name in fields and re.fullmatch(NUMBERS.get(hints[name], "(?!)"), value):
            key, chosen = name, hints[name](value)
        elif not equals and piece in words:
            key, chosen = words[piece]
        else:
            if equals and name in fields and hints[name] in NUMBERS:
                raise CallError(
                    f"rule {shown(text)}: {name}: expected {NUMBER_WORDS[hints[name]]}, found {shown(value)}"
                )
            known = [*words, *(f"{one}=…" for one in fields if one in LISTS or hints[one] in NUMBERS)]
            raise CallError(
                f"rule {shown(text)}: {word} has no option {shown(piece)}; expected some of {', '.join(known)}"
            )
        if key in found and found[key] != chosen:
            both = (
                f": {found[key]} and {chosen} are both values of it"
                if key in {one for one, _ in words.values()}
                else ""
            )
            raise CallError(f"rule {shown(text)}: {key} is given twice{both}; give one")
        found[key] = chosen
    return found


def _option_fields(kind: type[Intervention]) -> list[str]:
    """Return the names of a rule's options, its own before those of its base classes."""
    options = {field.name for field in dataclasses.fields(kind) if field.kw_only and field.init}
    return [name for base in kind.__mro__ for name in inspect.get_annotations(base) if name in options]


def _option_words(fields: list[str], hints: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return for each word that may stand as an option the field it sets, and the value."""
    choices = {
        value: (name, value) for name in fields if get_origin(hints[name]) is Literal for value in get_args(hints[name])
    }
    return choices | {name: (name, True) for name in fields if hints[name] is bool}


def _read_numbers(text: str, name: str, value: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in value.split("+"):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
        if ends is None:
            raise CallError(f"rule {shown(text)}: expected {name} as numbers such as 0-3+7, found {shown(value)}")
        if int(ends[2] or ends[1]) >= MOST:
            raise CallError(f"rule {shown(text)}: {name}: expected numbers below {MOST:,}, found {part}")
        if int(ends[2] or ends[1]) < int(ends[1]):
            raise CallError(
                f"rule {shown(text)}: {name}: expected the lower number first, found {part}; write {ends[2]}-{ends[1]}"
            )
        numbers += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(numbers)


def _read_heads(text: str, value: str) -> tuple[tuple[int, int], ...]:
    heads = [re.fullmatch(r"([0-9]+)\.([0-9]+)", part) for part in value.split("+")]
    if None in heads:
        raise CallError(f"rule {shown(text)}: expected heads as layer.head, such as 5.1+0.5, found {shown(value)}")
    return tuple((int(one[1]), int(one[2])) for one in heads if one is not None)
