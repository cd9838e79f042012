"""What a statistic is, and which there are.

Every class that extends `Statistic` is found by itself: those in the modules of this package, and those that an installed package declares
as entry points of the group ``sinkscope.statistics`` (a class, or a module with classes). Its numbers appear in `analyse`, in its JSON, and
in what ``--keep statistics`` keeps. docs/adding.md shows how to add one.
"""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, ClassVar

import numpy as np

from sinkscope.argument_types import fits, in_words
from sinkscope.documents import describe, shown
from sinkscope.errors import CallError, SinkscopeError
from sinkscope.extension_points import find_kinds
from sinkscope.sinks.finding import Recorded
from sinkscope.sinks.own_recordings import check_recorded
from sinkscope.statistics.kept_columns import is_known
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.step import PER_LAYER, PER_STEP, RecordedStep
from sinkscope.statistics.thresholds import THRESHOLDS, Place, Threshold
from sinkscope.traces.own_arrays import checked_step
from sinkscope.traces.reading import Trace, as_trace

Key = tuple[str, Place]
"""Name of a statistic and the place where it holds."""
Values = dict[Key, float]
"""One prompt's numbers, NaN where the prompt has none."""

ENTRY_POINTS = "sinkscope.statistics"
LARGEST = 1e100
"""Bound of the numbers of a statistic, whose squares are added up."""
PLAIN = (str, int, float, NoneType)
"""What a place may say, since JSON holds it."""
READ_AT_ONCE = 16 << 20
"""Bytes of a trace that are read at a time, where a step is smaller."""


@dataclass(frozen=True)
class Definition:
    """What a number means.

    Attributes:
        claim: the paper's words or figure that it puts a number on.
    """

    text: str
    unit: str
    claim: str


class Statistic(ABC):
    """A family of numbers that every prompt has by itself.

    Names that end in ``_in`` are told for every layer, those in ``_over_steps`` for each third of the steps; they share the definition of
    the name without the ending.

    Attributes:
        definitions: {name: what it is}, in the order in which tables show them.
        order: where tables show the family; families that do not say come last.
    """

    definitions: ClassVar[Mapping[str, Definition]]
    order: ClassVar[int] = 100

    @abstractmethod
    def values(self, prompt: PromptSummary) -> Values:
        """Return the numbers of one prompt; a number at a threshold has ``threshold.place`` in front of its place."""

    def keep(self, step: RecordedStep) -> Any:
        """Return what ``values`` needs of a step beside what a `PromptSummary` has: a dataclass of arrays, or None.

        ``prompt.kept(TheDataclass)`` then has these arrays with an axis ``step`` in front.
        """
        return None


def at_thresholds(prompt: PromptSummary, values_at: Callable[[PromptSummary, Threshold], Values]) -> Values:
    """Return the numbers at every threshold, with the threshold in front of each place."""
    values: Values = {}
    for threshold in prompt.thresholds:
        at = threshold.place
        values |= {(name, (*at, *place)): value for (name, place), value in values_at(prompt, threshold).items()}
    return values


@cache
def all_statistics() -> tuple[Statistic, ...]:
    """Return one of each statistic, in the order of tables.

    Raises:
        CallError: two statistics define one name, a statistic cannot be made or defines nothing, or an entry point brings none.
    """
    expected = "a class that extends Statistic, or a module with one"
    kinds = find_kinds(
        "sinkscope.statistics", Statistic, lambda kind: not inspect.isabstract(kind), ENTRY_POINTS, expected
    )
    made = [_made(kind) for kind in kinds]
    found = sorted(made, key=lambda one: (one.order, type(one).__module__))
    names = Counter(name for one in found for name in one.definitions)
    if twice := [name for name, count in names.items() if count > 1]:
        raise CallError(
            f"expected every statistic to be defined once, found two definitions of {twice[0]}; rename one of them"
        )
    return tuple(found)


def _made(kind: type[Statistic]) -> Statistic:
    """Return the one statistic of a class.

    Raises:
        CallError: its ``__init__`` fails, or its definitions or its order are none.
    """
    try:
        made = kind()
    except Exception as error:  # whatever it does there
        raise CallError(
            f"{_name(kind)}: expected a class that is made without arguments, found one that fails: {error}"
        ) from error
    return _whole(made)


def _whole(statistic: Statistic) -> Statistic:
    """Return a statistic.

    Raises:
        CallError: its definitions or its order are none.
    """
    name, definitions, order = _name(type(statistic)), getattr(statistic, "definitions", None), statistic.order
    if not fits(definitions, Mapping[str, Definition]):
        raise CallError(
            f"{name}.definitions: expected {{name: Definition(text, unit, claim)}}, found {shown(definitions)}"
        )
    if not fits(order, float) or not math.isfinite(order):
        raise CallError(f"{name}.order: expected a number, found {in_words(order)}")
    return statistic


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def all_definitions() -> Mapping[str, Definition]:
    """Return {name: what it is} of every statistic, in the order of tables."""
    return MappingProxyType(
        {name: definition for one in all_statistics() for name, definition in one.definitions.items()}
    )


def short_name(name: str) -> str:
    """Return the name of a statistic without its ending for layers or thirds of the steps."""
    return re.sub(r"_(over_steps|in)$", "", name)


def definition_of(name: str) -> Definition:
    """Return what a number means, whether or not its name has an ending.

    Raises:
        CallError: there is no number of this name.
    """
    if (short := short_name(name)) not in all_definitions():
        raise CallError(f"name: expected one that `sinkscope analyse --definitions` prints, found {describe(name)}")
    return all_definitions()[short]


def order_of(name: str) -> int:
    """Return the place of a name among all definitions, by which statistics are sorted."""
    return list(all_definitions()).index(short_name(name))


def values_of(prompt: PromptSummary, statistics: Sequence[Statistic] | None = None) -> Values:
    """Return all numbers of one prompt; NaN too where it was recorded with ``keep="top"`` and the columns kept do not tell.

    Args:
        statistics: which; all when not given.

    Raises:
        CallError: no numbers, a number without a definition, or at a place that is no row of pairs; or definitions that are none.
    """
    values: Values = {}
    for one in all_statistics() if statistics is None else map(_whole, statistics):
        values |= _checked_values(one, one.values(prompt))
    if prompt.canvas.settings.kept is None:
        return values
    return {
        key: value if is_known(prompt, short_name(key[0]), dict(key[1])) else math.nan for key, value in values.items()
    }


def _checked_values(statistic: Statistic, found: Any) -> Values:
    """Return what a statistic says of a prompt.

    Raises:
        CallError: something else than numbers by name and place, or a number without a definition.
    """
    name, numbers = type(statistic).__qualname__, Values()
    if not isinstance(found, Mapping):
        raise CallError(f"{name}.values: expected {{(name, place): number}}, found {in_words(found)}")
    for key, value in found.items():
        if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str):
            raise CallError(
                f"{name}.values: expected keys (name, place), such as ('norms.contribution', ()), found {key!r}"
            )
        of, place = key
        if short_name(of) not in statistic.definitions:
            raise CallError(f"expected {name} to define {short_name(of)!r}, found {', '.join(statistic.definitions)}")
        if not isinstance(place, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in place):
            raise CallError(
                f"{name}: expected the place of {of!r} as a tuple of pairs, such as () or (('layer', 2),), found {place!r}"
            )
        if not all(isinstance(axis, str) and isinstance(one, PLAIN) for axis, one in place):
            raise CallError(
                f"{name}: expected the place of {of!r} as names with text or Python's numbers, found {place!r}"
            )
        numbers[key] = _number(f"{name}: expected {of!r} at {dict(place)}", value)
    return numbers


def _number(expected: str, value: Any) -> float:
    if getattr(value, "ndim", None) == 0:  # of NumPy or torch
        value = value.item()
    if type(value) is not float and not fits(value, float):
        raise CallError(f"{expected} as a number, or NaN where there is none, found {in_words(value)}")
    if abs(value) > LARGEST:
        raise CallError(f"{expected} as a number up to {LARGEST:g}, or NaN where there is none, found {value:g}")
    return float(value)


def feed_of(
    settings: PromptSettings,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    tolerance: int = 0,
    statistics: Sequence[Statistic] | None = None,
) -> PromptFeed:
    """Return a feed that keeps of each step what some statistics need, or any when they are not given."""
    return PromptFeed(
        settings, thresholds, tolerance, [one.keep for one in (all_statistics() if statistics is None else statistics)]
    )


def summarise(
    trace: Recorded,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    tolerance: int = 0,
    training: Mapping[int, int] | None = None,
    statistics: Sequence[Statistic] | None = None,
) -> PromptSummary:
    """Return the summary of a trace, which is read once, a few steps at a time.

    Args:
        thresholds: at which sinks are counted.
        tolerance: steps without a sink that a track and a main sink survive.
        training: {token: how often it stands in the training corpus}.
        statistics: whose records are kept; all when not given.

    Raises:
        CallError: a threshold that cannot be told or never holds, none at all, a tolerance below 0, or arrays of your own that do not
            fit each other or hold values that cannot be.
        SinkscopeError: a trace without a whole step, or without tokens or columns.
    """
    trace = as_trace(trace)
    check_recorded(trace, "analyse", PER_STEP)
    if isinstance(trace, Trace):
        for needed in ("tokens", "column_sums"):
            getattr(trace, needed)  # raises an error that names the trace
    usual = max(THRESHOLDS).excess  # taken for every trace: a short one, of a few tokens, has no sinks then
    for one in thresholds:
        if (
            one.unit == "queries"
            and one.excess > usual
            and one.excess >= (queries := np.prod(trace.column_sums.shape[::3]))
        ):
            raise CallError(
                f"excess: {one.excess:g} in queries can never hold here: expected less than the {queries} queries of all steps"
            )
    manifest = held(trace, "manifest") or {}
    settings = replace(PromptSettings.of(bool(trace.causal), manifest, training), kept=_kept_of(trace))
    feed = feed_of(settings, thresholds, tolerance, statistics)
    own, sizes = not isinstance(trace, Trace), dict[str, int]()
    for step in recorded_steps(trace):
        if own:
            checked_step(f"{type(trace).__name__}, step {feed.steps}: ", step, sizes, PER_STEP)
        feed.take(step)
    return feed.finish({int(token): text for token, text in (manifest.get("vocabulary") or {}).items()})


def _kept_of(trace: Recorded) -> int | None:
    """Return how many of the largest columns of each head a trace holds; None where it holds all."""
    return None if not isinstance(trace, Trace) or "column_sums" in trace.tensors else trace.top_column_sums.shape[-1]


def held(trace: Any, name: str) -> Any:
    """Return a tensor of a trace, None where it was not recorded."""
    try:
        return getattr(trace, name)
    except (AttributeError, SinkscopeError):
        return None


def recorded_steps(trace: Recorded) -> Iterator[dict[str, np.ndarray]]:
    """Yield the steps of a trace as a `PromptFeed` takes them in, without what lies beyond the canvas."""
    if not trace.steps:
        return
    whole = {
        name: np.asarray(one[:]) for name in ("tokens", "masked", "written") if (one := held(trace, name)) is not None
    }
    lengths = held(trace, "lengths")
    lengths = (whole["tokens"] >= 0).sum(axis=1) if lengths is None else np.asarray(lengths[:])
    tensors = {"column_sums": trace.column_sums} | ({"last_query": trace.last_query} if trace.causal else {})
    tensors |= {
        name: one
        for name in PER_LAYER
        if name not in ("column_sums", "last_query") and (one := held(trace, name)) is not None
    }
    bytes_a_step = sum(4 * int(np.prod(one.shape[1:])) for one in tensors.values())
    many = max(1, READ_AT_ONCE // bytes_a_step)
    for first in range(0, trace.steps, many):
        read = {name: np.asarray(one[first : first + many]) for name, one in tensors.items()}
        for step in range(first, min(first + many, trace.steps)):
            length = int(lengths[step])
            yield {
                **{name: one[step] if name == "written" else one[step, :length] for name, one in whole.items()},
                **{name: one[step - first, ..., :length] for name, one in read.items()},
            }
