"""`Statistic`, the extension point, and the numbers of one prompt.

Every class that extends it is found: those in the modules of this package, and those that an installed package declares
as entry points of the group ``sinkscope.statistics`` (a class, or a module with classes). See docs/adding.md.
"""

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from sinkscope.errors import CallError
from sinkscope.extension_points import find_kinds
from sinkscope.sinks.definition import Rule
from sinkscope.sinks.finding import Recorded
from sinkscope.statistics.intervals import thirds
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.step import PER_LAYER, RecordedStep
from sinkscope.statistics.thresholds import THRESHOLDS, UNITS, Place, Threshold
from sinkscope.traces.reading import Trace, as_trace, expect_steps

Key = tuple[str, Place]
Values = dict[Key, float]
READ_AT_ONCE = 16 << 20

OF_ALL_COLUMNS = ("concentration.entropy", "concentration.gini")
OVER_QUERIES = ("concentration.gu_rate", "concentration.gu_rate_first")
"""In causal models a key that few queries see may be above 0.3 without being among the largest; where weights were
zeroed, the columns that were kept do not tell how many queries there are."""
MOST_OVER_THIRD = 3
"""Keys of one head that may be above 0.3 at once; the first token is among the kept ones if so many were."""
OF_LARGEST = ("agreement.", "triggers.", "choice.", "movement.drift", "movement.residence", "movement.steps_with_sink")
OF_LARGEST += ("concentration.strength", "concentration.layers_without")
OF_LARGEST += ("composition.share_of_canvas", "composition.token_on_canvas")
"""Beginnings of numbers at a threshold that the largest column of each head, always kept, or the canvas decides."""


@dataclass(frozen=True)
class Definition:
    """Meaning and unit of a number, and the ``claim`` of the paper, in words or by figure, that it measures."""

    text: str
    unit: str
    claim: str


class Statistic(ABC):
    """A family of numbers of each prompt; names of layers end in ``_in``, of thirds of the steps in ``_over_steps``."""

    definitions: ClassVar[Mapping[str, Definition]]
    order: ClassVar[int] = 100

    @abstractmethod
    def values(self, prompt: PromptSummary) -> Values:
        """Return the numbers of one prompt; a number at a threshold has ``threshold.place`` in front of its place."""

    def keep(self, step: RecordedStep) -> Any:
        """Return a dataclass of arrays that ``values`` finds in ``prompt.kept(TheDataclass)``, by step, or None."""
        return None


def at_thresholds(prompt: PromptSummary, values_at: Callable[[PromptSummary, Threshold], Values]) -> Values:
    """Return the numbers at every threshold, with the threshold in front of each place."""
    values: Values = {}
    for threshold in prompt.thresholds:
        at = threshold.place
        values |= {(name, (*at, *place)): value for (name, place), value in values_at(prompt, threshold).items()}
    return values


def in_layers(name: str, numbers: Iterable[Any]) -> Values:
    """Return the numbers of a statistic in each layer."""
    return {(f"{name}_in", (("layer", layer),)): float(number) for layer, number in enumerate(numbers)}


def over_steps(name: str, steps: int, number: Callable[[slice], float]) -> Values:
    """Return the numbers of a statistic in each third of the steps."""
    return {(f"{name}_over_steps", (("third", third),)): number(part) for third, part in thirds(steps).items()}


@cache
def all_statistics() -> tuple[Statistic, ...]:
    """Return one of each statistic, in the order of tables; CallError for a plugin without one."""
    expected, here = "a class that extends Statistic, or a module with one", "sinkscope.statistics"
    base: Any = Statistic  # abstract; what is found is not
    kinds = find_kinds(here, base, lambda kind: not inspect.isabstract(kind), here, expected)
    return tuple(sorted((kind() for kind in kinds), key=lambda one: (one.order, type(one).__module__)))


@cache
def all_definitions() -> Mapping[str, Definition]:
    """Return {name: definition} of every statistic, in the order of tables."""
    return {name: definition for one in all_statistics() for name, definition in one.definitions.items()}


def short_name(name: str) -> str:
    """Return the name of a statistic without its ending for layers or thirds of the steps."""
    return re.sub(r"_(over_steps|in)$", "", name)


def definition_of(name: str) -> Definition:
    """Return the definition of a name, with an ending or without."""
    return all_definitions()[short_name(name)]


def order_of(name: str) -> int:
    """Return the place of a name among all definitions, by which statistics are sorted."""
    return list(all_definitions()).index(short_name(name))


def values_of(prompt: PromptSummary) -> Values:
    """Return all numbers of one prompt; NaN too where the columns that ``keep="top"`` kept do not tell."""
    values = {key: float(value) for one in all_statistics() for key, value in one.values(prompt).items()}
    kept = prompt.canvas.settings.kept
    if kept is None:
        return values
    unknown = OF_ALL_COLUMNS
    if prompt.canvas.settings.causal or prompt.canvas.settings.zeroed:
        unknown += OVER_QUERIES
    elif kept < MOST_OVER_THIRD:
        unknown += OVER_QUERIES[1:]
    for name, place in values:
        short = short_name(name)
        if short in unknown or not has_every_sink([prompt.known_from], short, dict(place)):
            values[name, place] = math.nan
    return values


def has_every_sink(known_from: Sequence[tuple[float, ...]], name: str, place: Mapping[str, Any]) -> bool:
    """Return whether every sink that a number counts was kept, of every prompt: few sinks would bias the mean."""
    if "excess" not in place or name.startswith(OF_LARGEST):
        return True
    return all(one[UNITS.index(place["unit"])] <= place["excess"] for one in known_from)


def feed_of(settings: PromptSettings, thresholds: Sequence[Threshold] = THRESHOLDS, tolerance: int = 0) -> PromptFeed:
    """Return a feed that keeps the records of all statistics."""
    return PromptFeed(settings, thresholds, tolerance, [one.keep for one in all_statistics()])


def summarise(
    trace: Recorded,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    tolerance: int = 0,
    training: Mapping[int, int] | None = None,
    rule: Rule | None = None,
) -> PromptSummary:
    """Return the summary of a trace, read a few steps at a time; arguments and errors as those of `analyse`."""
    trace = as_trace(trace)
    expect_steps(trace, "analyse")
    usual = max(THRESHOLDS).excess  # taken for every trace: a short one, of a few tokens, has no sinks then
    queries = np.prod(trace.column_sums.shape[::3])
    if high := [one.excess for one in thresholds if one.unit == "queries" and one.excess >= max(usual + 1e-9, queries)]:
        raise CallError(f"excess: {high[0]:g} in queries can never hold: all steps have {queries} queries")
    manifest, kept = getattr(trace, "manifest", None) or {}, None
    if isinstance(trace, Trace) and "column_sums" not in trace.tensors:
        kept = trace.top_column_sums.shape[-1]
    settings = replace(PromptSettings.of(bool(trace.causal), manifest, training, rule), kept=kept)
    feed = feed_of(settings, thresholds, tolerance)
    for step in recorded_steps(trace):
        feed.feed(step)
    return feed.finish({int(token): text for token, text in (manifest.get("vocabulary") or {}).items()})


def recorded_steps(trace: Recorded) -> Iterator[dict[str, np.ndarray]]:
    """Yield the steps of a trace as a `PromptFeed` takes them in, without what lies beyond the canvas."""
    named = {name: getattr(trace, name, None) for name in ("tokens", "masked", "written", "lengths", *PER_LAYER)}
    held = {name: one for name, one in named.items() if one is not None and (trace.causal or name != "last_query")}
    whole = {name: np.asarray(held[name][:]) for name in ("tokens", "masked", "written") if name in held}
    lengths = np.asarray(held["lengths"][:]) if "lengths" in held else (whole["tokens"] >= 0).sum(axis=1)
    tensors = {name: held[name] for name in PER_LAYER if name in held}
    many = max(1, READ_AT_ONCE // sum(4 * int(np.prod(one.shape[1:])) for one in tensors.values()))
    for first in range(0, trace.steps, many):
        read = {name: np.asarray(one[first : first + many]) for name, one in tensors.items()}
        for step in range(first, min(first + many, trace.steps)):
            length = int(lengths[step])
            yield {
                **{name: one[step] if name == "written" else one[step, :length] for name, one in whole.items()},
                **{name: one[step - first, ..., :length] for name, one in read.items()},
            }
