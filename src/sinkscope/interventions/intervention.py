"""The base class of everything that takes keys away, with the options that limit any of them; and several such rules at once."""

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, get_type_hints

import numpy as np
from torch import Tensor, nn

from sinkscope.argument_types import NUMBER_WORDS, NUMBERS, check_argument, in_words, number_from, plain
from sinkscope.documents import shown
from sinkscope.errors import CallError
from sinkscope.interventions.hiding import Hiding, hiding
from sinkscope.interventions.ranking import Scope
from sinkscope.interventions.rule_context import Observation, RuleContext
from sinkscope.interventions.step_canvas import GROUPS
from sinkscope.models import Model
from sinkscope.models.weights import LONGEST_CANVAS

Where = str | Collection[int] | None


@dataclass(frozen=True, kw_only=True)
class Intervention(ABC):
    """A rule that takes keys away from queries: a frozen value, and called with a model a context manager.

    ``with HideTopSinks(1)(model) as hiding:`` hides while the body runs and leaves no trace on the model, also after an exception;
    ``hiding.effect`` says how much attention was removed. A query never loses its last visible key.

    A subclass implements `choose`. To be found by `parse_rule` and ``--hide``, it names its `rule` and lies in a module of this
    package, or in one that an installed package declares as an entry point of the group ``sinkscope.interventions``.

    Attributes:
        layers: numbers of the layers to which the rule is limited, from 0; all when None.
        heads: the only heads whose queries lose keys, pairs (layer, head), from 0; all when None.
        steps: numbers of the steps of a generation to which it is limited, from 0; all when None.
        keys: the only keys it may choose: positions of the canvas (padding not counted), or ``masked``, ``unmasked``, ``prompt``,
            ``answer``; any when None. Where a network is called by itself, all tokens are the prompt's. Positions and steps beyond a
            generation match nothing; `Effect` says what was hidden.
        queries: the only queries that lose them, named in the same way.
        effect: ``mask``: −∞ before the softmax, so that the other keys share the attention; ``zero``: 0 after the softmax, so that
            the attention is lost, and with it the values.
    """

    rule: ClassVar[str] = ""
    """How the rule is written as text, such as ``top:K``: its word, and a name for each argument; empty for a rule without a text."""
    observing: ClassVar[bool] = True
    """Whether `choose` may ask for attention (`RuleContext.seen`). False saves a sweep in layers and steps where nothing is hidden."""
    control: ClassVar[bool] = False
    """Whether the rule hides other keys in place of the top K, for comparison; see `controls`."""
    takes_own: ClassVar[bool] = False
    """Whether the network's own sink token or learned logit is taken away too."""

    layers: Collection[int] | None = None
    steps: Collection[int] | None = None
    keys: Where = None
    queries: Where = None
    heads: Collection[tuple[int, int]] | None = None
    effect: Literal["mask", "zero"] = "mask"

    def __post_init__(self) -> None:
        for name, value in [*vars(self).items()]:
            object.__setattr__(self, name, plain(value))  # so that a rule has one text
        for name in ("layers", "steps", "keys", "queries"):
            object.__setattr__(self, name, _read_numbers(name, getattr(self, name), words=name in ("keys", "queries")))
        object.__setattr__(self, "heads", _read_heads(self.heads, self.layers))
        check_choice("effect", self.effect, ("mask", "zero"))

    @abstractmethod
    def choose(self, context: RuleContext) -> Tensor | None:
        """Return the keys to take away in one layer of one step.

        Returns:
            bool [batch, head, key] or [batch, head, query, key], with one head for all where they do not differ;
            None while the rule is not in force, such as before anything has been observed.
        """

    @property
    def most(self) -> int | None:
        """The largest number of keys that a head can lose; None where it is not known beforehand. A smaller number is an error."""
        return None

    @property
    def least_tokens(self) -> int:
        """The smallest number of tokens that a canvas must have."""
        return 1

    @property
    def idle(self) -> bool:
        """Whether the rule hides nothing whatever the model does; the model then runs untouched."""
        return () in (self.layers, self.steps, self.keys, self.queries, self.heads)

    @property
    def waits(self) -> bool:
        """Whether the rule needs the step before, and so hides nothing where there is only one step, as in a likelihood."""
        return False

    @property
    def unhidden_pass(self) -> bool:
        """Whether every step needs one more forward call with nothing hidden (``clean`` attention)."""
        return False

    def criterion(self, found: Observation, causal: bool) -> tuple[Tensor, Scope]:
        """Return values [batch, head, key] that rank the keys, and which heads share a ranking; `Effect.hits` counts by it."""
        return (found.last_row if causal else found.columns), "head"

    @classmethod
    def arguments(cls) -> dict[str, str]:
        """Return for each argument behind the colon, by its name in `rule`, what it must be, as a message says it."""
        hints = get_type_hints(cls)
        fields = [field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only]
        names = cls.rule.partition(":")[2].split("+")
        return {
            name: NUMBER_WORDS[hints[field]]
            for name, field in zip(names, fields, strict=False)
            if hints[field] in NUMBER_WORDS
        }

    @classmethod
    def read_arguments(cls, text: str) -> tuple[Any, ...]:
        """Return the arguments that stand behind the colon in the text of a rule.

        They are separated by ``+``, one for each name in `rule`, in the order of the class's positional fields; each is a whole
        number or a number, as its field is annotated.

        Raises:
            ValueError: the text does not fit.
        """
        hints = get_type_hints(cls)
        fields = [field for field in dataclasses.fields(cls) if field.init and not field.kw_only]
        names, parts = cls.rule.partition(":")[2].split("+"), text.split("+")
        if len(parts) != len(names):
            raise ValueError(f"expected {len(names)} arguments, found {len(parts)}")
        kinds = [hints[field.name] for field in fields]
        return tuple(
            number_from(part, kind) if kind in NUMBERS else kind(part) for kind, part in zip(kinds, parts, strict=False)
        )

    def check_reach(self, longest: int) -> None:
        """Raise an error for a rule that can match nothing on any canvas of a model.

        Args:
            longest: tokens of the longest canvas.

        Raises:
            CallError: such a rule.
        """
        for name in ("keys", "queries"):
            numbers = getattr(self, name)
            if not isinstance(numbers, str | None) and min(numbers, default=0) >= longest:
                expected = f"positions from 0 to {longest - 1}, where the longest canvas of the model ends"
                raise CallError(f"{name}: expected {expected}, found {min(numbers)}")

    @contextmanager
    def __call__(self, model: Model | nn.Module) -> Iterator[Hiding]:
        """Hide while the body runs.

        Raises:
            CallError: no model, layers that it does not have, or a rule that can match nothing there.
            AttentionError: the model's attention cannot be changed.
        """
        if isinstance(model, Model) and not self.idle:
            self.check_reach(model.card.max_positions)
        with hiding(model, () if self.idle else (self,)) as running:
            yield running


@dataclass(frozen=True)
class Composed:
    """Rules in force at the same time: a key is hidden where any of them hides it. Made by `compose`.

    Its effect counts removed attention once. Each rule observes what all of them do: ``local`` is without any hiding,
    ``hidden`` with all of it.
    """

    parts: tuple[Intervention, ...]

    def __post_init__(self) -> None:
        check_argument("parts", self.parts, tuple[Intervention, ...])

    @property
    def idle(self) -> bool:
        """Whether none of them hides anything."""
        return all(part.idle for part in self.parts)

    @property
    def waits(self) -> bool:
        """Whether any of them needs the step before; see `Intervention.waits`."""
        return any(part.waits for part in self.parts)

    @property
    def least_tokens(self) -> int:
        """The smallest number of tokens that a canvas must have."""
        return max((part.least_tokens for part in self.parts), default=1)

    @contextmanager
    def __call__(self, model: Model | nn.Module) -> Iterator[Hiding]:
        """Hide while the body runs; see `Intervention`."""
        parts = [part for part in self.parts if not part.idle]
        if isinstance(model, Model):
            for part in parts:
                part.check_reach(model.card.max_positions)
        with hiding(model, parts) as running:
            yield running


def compose(*rules: Intervention | Composed) -> Composed:
    """Return several rules as one; of none, one that hides nothing.

    Raises:
        CallError: something that is no rule.
    """
    wrong = [rule for rule in rules if not isinstance(rule, Intervention | Composed)]
    if wrong:
        raise CallError(f"compose: expected interventions such as HideTopSinks(1), found {in_words(wrong[0])}")
    return Composed(tuple(part for rule in rules for part in (rule.parts if isinstance(rule, Composed) else (rule,))))


def check_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Raise CallError for a word that is none of the known ones."""
    if not isinstance(value, str) or value not in known:
        raise CallError(f"{name}: expected {' or '.join(known)}, found {shown(value)}")


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0 upwards, NumPy's among them."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def check_length(name: str, given: Collection[Any]) -> None:
    """Raise CallError for more numbers than a canvas can have positions, before each is looked at."""
    if isinstance(given, list | tuple | set | frozenset | np.ndarray) and len(given) > LONGEST_CANVAS:
        raise CallError(f"{name}: expected at most {LONGEST_CANVAS:,} numbers, found {len(given):,}")


def ends_of(given: Collection[Any]) -> Collection[Any]:
    """Return the first and the last number of a range, between which all others lie; of any other collection all."""
    return (given[0], given[-1]) if isinstance(given, range) and given else given


def check_count(name: str, value: Any) -> None:
    """Raise CallError for anything but a whole number from 0 upwards."""
    if not is_count(value):
        raise CallError(f"{name}: expected a whole number from 0 upwards, found {shown(value)}")


def _read_numbers(name: str, given: Any, words: bool) -> Any:
    if given is None or (words and isinstance(given, str) and given in GROUPS):
        return given
    expected = "numbers from 0 upwards, such as range(4) or (0, 2)" + (
        f", or one of {', '.join(GROUPS)}" if words else ""
    )
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection) or getattr(given, "ndim", 1) == 0:
        raise CallError(f"{name}: expected {expected}, found {shown(given)}")
    check_length(name, given)
    for number in ends_of(given):
        if not is_count(number):
            raise CallError(f"{name}: expected {expected}, found {shown(number)} among them")
        if (
            number >= LONGEST_CANVAS
        ):  # no generation has more steps than its canvas could have tokens, and no network more layers
            raise CallError(f"{name}: expected numbers below {LONGEST_CANVAS:,}, found {shown(number)} among them")
    return tuple(sorted({int(number) for number in given}))


def _read_heads(given: Any, layers: Any) -> Any:
    if given is None:
        return None
    expected = "pairs (layer, head) of numbers from 0 upwards, such as {(5, 1), (0, 5)}"
    if isinstance(given, str) or not isinstance(given, Collection) or getattr(given, "ndim", 1) == 0:
        raise CallError(f"heads: expected {expected}, found {shown(given)}")
    for pair in given:
        good = (
            isinstance(pair, Collection)
            and not isinstance(pair, str)
            and getattr(pair, "ndim", 1) == 1
            and len(pair) == 2
        )
        if not good or not all(is_count(number) for number in pair):
            raise CallError(f"heads: expected {expected}, found {shown(pair)} among them")
    pairs = [(int(layer), int(head)) for layer, head in given]
    times, allowed = Counter(pairs), set(layers or ())
    for layer, head in pairs:
        if times[layer, head] > 1:
            raise CallError(f"heads: expected each head once, found {layer}.{head} twice")
        if layers and layer not in allowed:
            raise CallError(
                f"heads: expected heads of the layers {'+'.join(map(str, layers))}, found {layer}.{head}; leave layers= out"
            )
    return tuple(sorted(pairs))
