"""The base class of everything that takes keys away, several such rules at once, and rules as text (``top:1``)."""

import dataclasses
import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention import subscribed
from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.interventions.hiding import Hiding
from sinkscope.interventions.rule_context import GROUPS, Observation, RuleContext, Scope
from sinkscope.models import Model

Where = str | Collection[int] | None
NOTHING = "none"


@dataclass(frozen=True, kw_only=True)
class Intervention(ABC):
    """A rule that takes keys away from queries: a frozen value, and called with a model a context manager.

    ``with HideTopSinks(1)(model) as hiding:`` hides while the body runs and leaves no trace on the model, also after an
    exception; ``hiding.effect`` says how much attention was removed. A query never loses its last visible key.
    A subclass implements `choose`, and to be found by `parse_rule` and ``--hide`` names its `rule`.

    Attributes:
        layers, steps: numbers to which the rule is limited, from 0; all when None.
        heads: the only heads whose queries lose keys, pairs (layer, head), from 0; all when None.
        keys: the only keys it may choose: positions of the canvas (padding not counted), or ``masked``, ``unmasked``,
            ``prompt``, ``answer``; any when None. Where a network is called by itself, all tokens are the prompt's.
        queries: the only queries that lose them, named in the same way.
        effect: ``mask``: −∞ before the softmax, so that the other keys share the attention; ``zero``: 0 after the
            softmax, so that the attention is lost, and with it the values.
    """

    rule: ClassVar[str] = ""
    """How the rule is written, such as ``top:K``: a word, and a name for each argument; empty for no text."""
    observing: ClassVar[bool] = True
    """Whether `choose` may ask for attention (`RuleContext.seen`). False saves a sweep where nothing is hidden."""
    looks_back: ClassVar[Collection[str]] = ("local", "hidden")
    """Which attention of the step before `choose` may ask for, if it may ask at all; the rest is not kept."""
    control: ClassVar[bool] = False
    """Whether the rule hides other keys in place of the top K, for comparison; see `observed`."""
    takes_own: ClassVar[bool] = False
    """Whether the network's own sink token or learned logit is taken away too."""
    most: ClassVar[int | None] = None
    """The largest number of keys that a head can lose; None where it is not known beforehand."""
    least_tokens: ClassVar[int] = 1
    """The smallest number of tokens that a canvas must have."""
    waits: ClassVar[bool] = False
    """Whether the rule needs the step before, so that it hides nothing in a likelihood, which has one step."""
    unhidden_pass: ClassVar[bool] = False
    """Whether every step needs one more forward call with nothing hidden (``clean`` attention)."""

    on_host: ClassVar[bool] = False
    """Whether `choose` reads a tensor or counts on the host, so that a step of it is not captured (`graphs`)."""

    layers: Collection[int] | None = None
    steps: Collection[int] | None = None
    keys: Where = None
    queries: Where = None
    heads: Collection[tuple[int, int]] | None = None
    effect: Literal["mask", "zero"] = "mask"

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, np.generic):
                object.__setattr__(self, name, value := value.item())  # so that a rule has one text
            words = get_args(hint) if get_origin(hint) is Literal else ()
            if (words and value not in words) or (hint is int and (type(value) is not int or value < 0)):
                expected = " or ".join(words) or "a whole number from 0 upwards"
                raise CallError(f"{name}: expected {expected}, found {value!r}")
        for name in ("layers", "steps", "keys", "queries"):
            value: Any = getattr(self, name)
            if value is not None and not (name in ("keys", "queries") and isinstance(value, str) and value in GROUPS):
                object.__setattr__(self, name, positions_of(value))  # type: ignore[arg-type]
        if self.heads is not None:
            object.__setattr__(self, "heads", tuple(sorted({(int(layer), int(head)) for layer, head in self.heads})))

    @abstractmethod
    def choose(self, context: RuleContext) -> Tensor | None:
        """Return the keys to take away in one layer of one step, bool [batch, head, key] or [batch, head, query, key]
        (one head for all alike); None while the rule is not in force.
        """

    @property
    def idle(self) -> bool:
        """Whether the rule hides nothing whatever the model does; the model then runs untouched."""
        return () in (self.layers, self.steps, self.keys, self.queries, self.heads)

    def criterion(self, found: Observation, causal: bool) -> tuple[Tensor, Scope]:
        """Return values [batch, head, key] that rank the keys for `Effect.hits`, and which heads share a ranking."""
        return (found.last_row if causal else found.columns), "head"

    def __call__(self, model: Model | nn.Module) -> AbstractContextManager[Hiding]:
        """Hide while the body runs; raise CallError for layers or heads that the model lacks."""
        return Composed((self,))(model)

    def __str__(self) -> str:
        """Return the text from which `parse_rule` makes the rule; its values, if its class has no text."""
        if not self.rule:
            return repr(self)
        arguments = "+".join(_text_of(getattr(self, name)) for name in arguments_of(type(self)))
        words, values = list[str](), list[str]()
        everyones = [field.name for field in dataclasses.fields(Intervention)]
        options = [field for field in dataclasses.fields(self) if field.kw_only and field.init]
        for field in sorted(options, key=lambda one: one.name in everyones):
            name, value = field.name, getattr(self, field.name)
            if value == field.default and name != "seed":
                continue
            if isinstance(value, bool):
                words.append(name)
            elif isinstance(value, str) and name not in ("keys", "queries"):
                words.append(value)
            else:
                values.append(f"{name}={_text_of(value)}")
        word, colon, _ = self.rule.partition(":")
        return f"{word}{colon}{arguments}" + (f"@{','.join(words + values)}" if words or values else "")


@dataclass(frozen=True)
class Composed:
    """Rules in force together: a key is hidden where any hides it, and counted once; each observes what all leave."""

    parts: tuple[Intervention, ...]

    @property
    def idle(self) -> bool:
        return all(part.idle for part in self.parts)

    @property
    def waits(self) -> bool:
        return any(part.waits for part in self.parts)

    @property
    def least_tokens(self) -> int:
        return max((part.least_tokens for part in self.parts), default=1)

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts)) or NOTHING

    @contextmanager
    def __call__(self, model: Model | nn.Module) -> Iterator[Hiding]:
        parts = [part for part in self.parts if not part.idle]
        network, ours = (model.network, model) if isinstance(model, Model) else (model, None)
        running = Hiding(parts, ours)
        if not parts:  # the model runs untouched
            yield running
            return
        with subscribed(network, running) as session:
            running.attach(session)
            yield running


def compose(*rules: Intervention | Composed) -> Composed:
    """Return several rules as one; of none, one that hides nothing."""
    return Composed(tuple(part for rule in rules for part in (rule.parts if isinstance(rule, Composed) else (rule,))))


@functools.cache
def hints_of(kind: type[Intervention]) -> dict[str, Any]:
    """Return the type of each field of a rule's class."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def positions_of(given: Collection[int]) -> tuple[int, ...]:
    """Return numbers in order, each once."""
    return tuple(sorted({operator.index(number) for number in given}))


def arguments_of(kind: type[Intervention]) -> list[str]:
    """Return the fields whose values stand behind the colon, with ``+`` between them."""
    return [field.name for field in dataclasses.fields(kind) if field.init and not field.kw_only]


def _text_of(value: Any) -> str:
    """Return a number without the ``+`` that parts numbers, ranges of places such as ``0-3+7``, or heads."""
    if isinstance(value, float):
        return str(value).removesuffix(".0").replace("e+", "e")
    if not isinstance(value, tuple):
        return str(value)
    ranges: list[list[Any]] = []
    for one in value:
        if ranges and isinstance(one, int) and one == ranges[-1][1] + 1:
            ranges[-1][1] = one
        else:
            ranges.append([one, one])
    return "+".join(
        f"{low[0]}.{low[1]}" if isinstance(low, tuple) else str(low) if low == high else f"{low}-{high}"
        for low, high in ranges
    )


ENTRY_POINTS = "sinkscope.interventions"


@functools.cache
def known_rules() -> Mapping[str, type[Intervention]]:
    """Return the class of every rule by its word, in alphabetical order."""
    expected = "an Intervention with a `rule`, or a module with some"
    found, has_text = dict[str, type[Intervention]](), lambda kind: bool(vars(kind).get("rule"))
    for kind in find_kinds(ENTRY_POINTS, Intervention, has_text, ENTRY_POINTS, expected):
        found[kind.rule.partition(":")[0]] = kind
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


@dataclass(frozen=True)
class HidePositions(Intervention):
    """Hides fixed positions (from 0, padding not counted) from the first step on, whatever attention they receive."""

    rule = "position:P"
    observing = False

    positions: Collection[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "positions", positions_of(self.positions))

    @property
    def idle(self) -> bool:
        return not self.positions or super().idle

    def choose(self, context: RuleContext) -> Tensor:
        return context.among(self.positions)[:, None]


@dataclass(frozen=True)
class KeepWindow(Intervention):
    """Every query sees the first ``sinks`` tokens and the ``recent`` ones nearest to it (causal: before it).

    Source: StreamingLLM (arXiv 2309.17453), which keeps 4 first tokens of causal models and numbers positions anew,
    where rotations here stay those of the whole text.
    """

    rule = "window:SINKS+RECENT"
    observing = False

    sinks: int
    recent: int

    def choose(self, context: RuleContext) -> Tensor:
        queries, keys = context.call.query.shape[2], context.call.keys
        place = torch.arange(keys, device=context.real.device)
        beyond = (place[keys - queries :, None] - place).abs() >= self.recent
        first = (context.real.long().cumsum(-1) - 1) < self.sinks
        return (beyond & (context.real & ~first)[:, None])[:, None]


@dataclass(frozen=True)
class HideSinkToken(Intervention):
    """No query sees the network's own sink tokens, or its learned logit; ``keys`` has nothing to choose among."""

    rule = "sink-token"
    observing = False
    takes_own = True

    def choose(self, context: RuleContext) -> Tensor:
        if context.call.own is None:
            raise CallError(f"expected a sink token or a learned logit to hide, found none in {context.call.name}")
        return torch.zeros(1, 1, context.call.keys, dtype=torch.bool, device=context.real.device)
