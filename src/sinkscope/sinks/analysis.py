"""The analysis of a set of traces: every statistic at every point, as a mean over prompts with its interval."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sinkscope.errors import CallError
from sinkscope.sinks.agreement import PromptAgreement, agreement_values, pattern_of
from sinkscope.sinks.catalogue import Definition, definition_of, order_of
from sinkscope.sinks.choice import ChoiceModel, choices_of
from sinkscope.sinks.composition import TokenShares, composition_values, leading_tokens, token_shares
from sinkscope.sinks.concentration import concentration_values, evenness_values
from sinkscope.sinks.finding import Recorded
from sinkscope.sinks.groups import group_values
from sinkscope.sinks.intervals import LEVEL, interval_of_difference, interval_of_means
from sinkscope.sinks.movement import movement_values
from sinkscope.sinks.norms import norm_values
from sinkscope.sinks.points import POINTS, Place, Point, Values, sweep
from sinkscope.sinks.profile import Profile, profile_of
from sinkscope.sinks.table import Key, PromptTable
from sinkscope.sinks.triggers import TRIGGERS, TriggerTest, shares_on, trigger_values


@dataclass(frozen=True)
class Statistic:
    """One number: a mean over prompts.

    Attributes:
        place: where it holds, such as {"excess": 3.0, "unit": "queries", "layer": 2}.
        value, low, high: None where no prompt has a value, or where there are fewer than five for an interval.
        prompts: how many have a value.
        p: of the test against shifted commits (triggers only).
    """

    name: str
    place: Mapping[str, Any]
    value: float | None
    low: float | None
    high: float | None
    prompts: int
    p: float | None = None

    @property
    def definition(self) -> Definition:
        """What it is, its unit, and which claim it answers."""
        return definition_of(self.name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, no NaN."""
        row = {"name": self.name, "at": dict(self.place), "value": self.value, "low": self.low, "high": self.high, "prompts": self.prompts}
        return row if self.p is None else {**row, "p": self.p}


@dataclass(frozen=True)
class Analysis:
    """What a set of traces of one model says.

    Attributes:
        prompts: number of traces; prompt_texts: their prompts, by which two analyses are paired.
        values: [prompt, key], the numbers behind the means; keys: their names and places.
    """

    statistics: tuple[Statistic, ...] = field(repr=False)
    prompts: int
    layers: int
    heads: int
    tolerance: int
    prompt_texts: tuple[Any, ...] = field(repr=False)
    keys: tuple[Key, ...] = field(repr=False)
    values: np.ndarray = field(repr=False)

    def find(self, name: str, **place: Any) -> list[Statistic]:
        """The statistics of a name whose place has all of this.

        ``find("movement.drift", excess=3.0, unit="queries")``

        Raises:
            CallError: no statistic of that name.
        """
        of_name = [one for one in self.statistics if one.name == name]
        if not of_name:
            raise CallError(f"no statistic {name!r}; there are {', '.join(dict.fromkeys(one.name for one in self.statistics))}")
        return [one for one in of_name if all(one.place.get(key) == value for key, value in place.items())]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, definitions once."""
        definitions = {name: vars(definition_of(name)) for name in dict.fromkeys(one.name for one in self.statistics)}
        return {
            "prompts": self.prompts,
            "layers": self.layers,
            "heads": self.heads,
            "tolerance": self.tolerance,
            "level": LEVEL,
            "definitions": definitions,
            "statistics": [one.as_dict() for one in self.statistics],
        }


def prompt_values(profile: Profile, training: Mapping[int, int] | None = None) -> Values:
    """Every statistic of one prompt that needs no other prompt."""
    values = evenness_values(profile)
    composed = partial(composition_values, training=training)
    for statistic in (movement_values, concentration_values, group_values, norm_values, composed, agreement_values):
        values |= sweep(profile.points, partial(statistic, profile))
    return values


def analyse(
    traces: Iterable[Recorded],
    points: Sequence[Point] = POINTS,
    *,
    tolerance: int = 0,
    training: Mapping[int, int] | None = None,
    choice: bool = True,
    seed: int = 0,
) -> Analysis:
    """Every statistic of a set of traces of one model, one trace in memory at a time.

    Args:
        traces: one a prompt; the prompt is the unit of evidence.
        points: thresholds of Eq. 3 at which everything is told.
        tolerance: steps without a sink that a track and a main sink survive.
        training: how often each token id stands in the training corpus.
        choice: fits the choice model, by far the longest part with many prompts.
        seed: of the resampled prompts and the shifted commits.

    Raises:
        CallError: no trace, traces of different models, or points that cannot be told.
        SinkscopeError: a trace without a whole step.
    """
    table = PromptTable()
    shape: tuple[int, int] | None = None
    weights: tuple[Any, Any] | None = None
    texts: list[Any] = []
    tests = {point: TriggerTest(seed=seed) for point in points}
    agreements = {point: PromptAgreement() for point in points}
    model = ChoiceModel()
    tokens: list[TokenShares] = []
    vocabulary: dict[int, str] = {}
    for trace in traces:
        profile = profile_of(trace, points, tolerance)
        found = profile.main.position.shape[1:]
        if shape is not None and found != shape:
            raise CallError(
                f"expected traces of one model, {shape[0]} layers × {shape[1]} heads as in the first; "
                f"found {found[0]} × {found[1]}. Analyse each model by itself"
            )
        shape = (int(found[0]), int(found[1]))
        manifest = getattr(trace, "manifest", None) or {}
        weights = _same_model(weights, manifest.get("model") or {})
        values = prompt_values(profile, training)
        for point in points:
            values |= _trigger_values(profile, point, tests[point])
            agreements[point].add(pattern_of(profile, point))
        table.add(values)
        tokens.append(token_shares(profile))
        if choice and not profile.canvas.causal:
            model.add(choices_of(profile, points))
        vocabulary |= profile.canvas.vocabulary
        texts.append(manifest.get("prompt"))
    if shape is None:
        raise CallError("expected at least one trace, found none")
    late: dict[Key, np.ndarray] = {}
    for number, point in enumerate(points):
        for token, (of_sinks, of_canvas) in leading_tokens(tokens, number).items():
            place = (*_at(point), ("token", token), ("text", vocabulary.get(token)))
            late["composition.token", place], late["composition.token_on_canvas", place] = of_sinks, of_canvas
        if model.prompts:
            late |= {(f"choice.{name}", _at(point)): gains for name, gains in model.result(number).items()}
    keys, whole = table.whole(late)
    statistics = [*_means(keys, whole, tests, seed), *_agreements(agreements, seed)]
    statistics.sort(key=lambda one: order_of(one.name))
    return Analysis(tuple(statistics), len(whole), *shape, tolerance, tuple(texts), keys, whole)


def compare(first: Analysis, second: Analysis, seed: int = 0) -> tuple[Statistic, ...]:
    """Second minus first, of every statistic that both have: what is left of a drift with one block, or with blocks reversed.

    Where both hold the same prompts in the same order the prompts are paired, which makes the interval narrower.
    """
    numbers = [{key: number for number, key in enumerate(one.keys)} for one in (first, second)]
    both = [key for key in numbers[0] if key in numbers[1]]
    ours, theirs = (one.values[:, [at[key] for key in both]] for one, at in zip((first, second), numbers, strict=True))
    paired = first.prompt_texts == second.prompt_texts and None not in first.prompt_texts
    means = interval_of_difference(ours, theirs, paired, seed)
    return tuple(_statistics(both, means))


def _means(keys: Sequence[Key], values: np.ndarray, tests: Mapping[Point, TriggerTest], seed: int) -> Iterator[Statistic]:
    shifted = {(_at(point), name): test for point, test in tests.items() if test.prompts for name in TRIGGERS}
    for one in _statistics(keys, interval_of_means(values, seed=seed)):
        if one.name != "triggers.over_chance" or one.value is None:
            yield one
            continue
        trigger = one.place["trigger"]
        test = shifted[tuple(one.place.items())[:2], trigger]
        low, high = one.low, one.high
        if low is not None and high is not None:  # the wider of the two: zero is left out only where the shifted commits say so too
            around = test.intervals(LEVEL)[trigger]
            low, high = min(low, around[0]), max(high, around[1])
        yield replace(one, low=low, high=high, p=test.p_values()[trigger])


def _statistics(keys: Sequence[Key], means: Any) -> Iterator[Statistic]:
    columns = (one.tolist() for one in (means.mean, means.low, means.high, means.prompts))
    for (name, place), mean, low, high, prompts in zip(keys, *columns, strict=True):
        yield Statistic(name, dict(place), _plain(mean), _plain(low), _plain(high), prompts)


def _agreements(agreements: Mapping[Point, PromptAgreement], seed: int) -> Iterator[Statistic]:
    for point, one in agreements.items():
        for name, (mean, low, high, prompts) in one.result(seed).items():
            yield Statistic(name, dict(_at(point)), _plain(mean), _plain(low), _plain(high), prompts)


def _trigger_values(profile: Profile, point: Point, test: TriggerTest) -> Values:
    shares = shares_on(profile.main_at(point), profile.canvas)
    if shares is None:
        return {}
    test.add(shares)
    return {(name, (*_at(point), *place)): value for (name, place), value in trigger_values(shares).items()}


def _same_model(first: tuple[Any, Any] | None, model: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Name and weight hash of the model, the first that says; refuses another one."""
    found = (model.get("name"), model.get("weight_hash"))
    if found[1] is None:
        return first
    if first is not None and first[1] != found[1]:
        raise CallError(
            f"expected traces of one model, found {first[0]} (weights {str(first[1])[:12]}…) and {found[0]} "
            f"(weights {str(found[1])[:12]}…). Analyse each model by itself"
        )
    return found


def _at(point: Point) -> Place:
    return (("excess", point.excess), ("unit", point.unit))


def _plain(number: float) -> float | None:
    return None if math.isnan(number) else float(number)
