"""The analysis of a set of traces: every statistic at every threshold, as a mean over prompts with its interval."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.errors import CallError
from sinkscope.sinks.definition import Rule
from sinkscope.sinks.followed_columns import Followed, Recorded
from sinkscope.sinks.tracking import MainPlace
from sinkscope.statistics import agreement, placement_model
from sinkscope.statistics.agreement import Pattern, prompt_agreement
from sinkscope.statistics.composition import TokenShares, leading_tokens
from sinkscope.statistics.intervals import LEVEL, Means, interval_of_difference, interval_of_means, known
from sinkscope.statistics.move_triggers import TriggerTest, draws_of, shares_of
from sinkscope.statistics.placement_model import Choices, held_out_gains
from sinkscope.statistics.statistic import (
    Definition,
    Key,
    Values,
    definition_of,
    has_every_sink,
    order_of,
    short_name,
    summarise,
    values_of,
)
from sinkscope.statistics.thresholds import THRESHOLDS, Threshold
from sinkscope.traces.bundles import copies_share
from sinkscope.traces.format import hidden_rules
from sinkscope.traces.reading import Trace, as_trace


@dataclass(frozen=True)
class Estimate:
    """A mean over the prompts that have a number, its interval from five prompts on, and p (triggers only)."""

    name: str
    place: Mapping[str, Any]
    value: float | None
    low: float | None
    high: float | None
    prompts: int
    p: float | None = None

    @property
    def definition(self) -> Definition:
        return definition_of(self.name)

    def as_dict(self) -> dict[str, Any]:
        row = {"name": self.name, "at": dict(self.place), "value": self.value, "low": self.low, "high": self.high}
        return {**row, "prompts": self.prompts, **({} if self.p is None else {"p": self.p})}


@dataclass(eq=False)
class PromptRows:
    """The numbers of prompts, a row each, which may be shorter than ``columns``, {key: its number} as they came."""

    columns: dict[Key, int] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)

    def add(self, values: Values) -> None:
        columns = [self.columns.setdefault(key, len(self.columns)) for key in values]
        row = np.full(len(self.columns), np.nan)
        row[columns] = list(values.values())
        self.rows.append(row)

    def extend(self, others: "PromptRows") -> None:
        for row in others.rows:
            self.add(dict(zip(others.columns, row.tolist(), strict=False)))

    def whole(self, late: Mapping[Key, np.ndarray] | None = None) -> tuple[tuple[Key, ...], np.ndarray]:
        """Return the keys, and [prompt, key], NaN without a number; ``late``: columns of all prompts together."""
        late = late or {}
        found = np.full((len(self.rows), len(self.columns) + len(late)), np.nan)
        for part, given in ((found, self.rows), (found[:, len(self.columns) :].T, late.values())):
            for whole, one in zip(part, given, strict=False):
                whole[: len(one)] = one
        return (*self.columns, *late), found


def estimates_of(keys: Sequence[Key], means: Means) -> Iterator[Estimate]:
    """Yield means over prompts under their names and places."""
    columns = (one.tolist() for one in (means.mean, means.low, means.high, means.prompts))
    for (name, place), mean, low, high, prompts in zip(keys, *columns, strict=True):
        yield Estimate(name, dict(place), known(mean), known(low), known(high), prompts)


def estimates(
    keys: Sequence[Key], values: Float[np.ndarray, "prompt key"], tests: Mapping[Threshold, TriggerTest], seed: int = 0
) -> Iterator[Estimate]:
    """Yield the mean over prompts of every key with its interval, and p for triggers."""
    for one in estimates_of(keys, interval_of_means(values, seed=seed)):
        if one.name == "triggers.over_chance" and one.value is not None:
            test, trigger = tests[Threshold(one.place["excess"], one.place["unit"])], one.place["trigger"]
            if one.low is not None and one.high is not None:
                low, high = test.widened(trigger, one.low, one.high)
                one = replace(one, low=low, high=high)
            one = replace(one, p=test.p_value(trigger))
        yield one


@dataclass(frozen=True, eq=False)
class Analysis:
    """Numbers of traces of one model: ``values`` [prompt, key] behind the means; ``places`` of most main sinks."""

    statistics: tuple[Estimate, ...] = field(repr=False)
    prompts: int
    layers: int
    heads: int
    tolerance: int
    prompt_texts: tuple[Any, ...] = field(repr=False)
    keys: tuple[Key, ...] = field(repr=False)
    values: Float[np.ndarray, "prompt key"] = field(repr=False)
    corpus: int = field(default=0, repr=False)
    places: tuple[tuple[MainPlace | None, str], ...] = field(default=(), repr=False)
    followed: str = ""
    rule: Rule = "eq3"

    def find(self, name: str, **place: Any) -> list[Estimate]:
        """Return the estimates of a name at a place, as ``find("movement.drift", excess=3.0)``, or raise CallError."""
        of_name = [one for one in self.statistics if one.name == name]
        found = [one for one in of_name if all(one.place.get(key) == value for key, value in place.items())]
        if not found:
            there = [one.place for one in of_name[:12]] or dict.fromkeys(one.name for one in self.statistics)
            raise CallError(f"no statistic {name!r} at {place}; there are {', '.join(map(str, there))}")
        return found

    def as_dict(self) -> dict[str, Any]:
        definitions = {name: vars(definition_of(name)) for name in dict.fromkeys(one.name for one in self.statistics)}
        sizes = {name: getattr(self, name) for name in ("prompts", "layers", "heads", "tolerance")}
        statistics = [one.as_dict() for one in self.statistics]
        places = [None if one is None else {**vars(one), "text": text} for one, text in self.places]
        sizes |= {"rule": self.rule, "followed": self.followed, "main_sinks": places}
        return {**sizes, "level": LEVEL, "definitions": definitions, "statistics": statistics}


def analyse(
    traces: Iterable[Recorded | str | Path] | Trace | str | Path,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    *,
    tolerance: int = 0,
    training: Mapping[int, int] | None = None,
    choice: bool = True,
    rule: Rule | None = None,
    seed: int = 0,
) -> Analysis:
    """Return every statistic of a set of traces of one model; of a trace a few steps at a time are in memory.

    Args:
        traces: one a prompt, open ones or their paths; the prompt is the unit of evidence.
        tolerance: steps without a sink that a track and a main sink survive.
        training: {token: how often it stands in the training corpus}.
        choice: fits the placement model, by far the longest part with many prompts.
        rule: ``uniform`` or ``eq3`` for causal models, see `sinks.finding.rule_of`.

    Raises CallError for no trace, one given twice, traces of different models or kinds, impossible thresholds.
    """
    thresholds = tuple(dict.fromkeys(thresholds))
    rows, choices, tokens = PromptRows(), list[Choices](), list[TokenShares]()
    tests = {threshold: TriggerTest() for threshold in thresholds}
    patterns = {threshold: list[Pattern]() for threshold in thresholds}
    shared, vocabulary, texts = dict[str, Any](), dict[int, str](), list[Any]()
    known_from, taken = list[tuple[float, float]](), dict[Path | str, Path]()
    places = list[tuple[MainPlace | None, str]]()
    given = [traces] if isinstance(traces, Trace | str | Path) else traces
    if isinstance(given, Sequence) and len({*map(id, given)}) < len(given):
        raise CallError("traces: expected each trace once, as it is one prompt, found one object twice")
    for trace in map(as_trace, given):
        if isinstance(trace, Trace):  # one taken twice would make intervals too narrow
            marks = {trace.folder.resolve(), *copies_share(trace)}
            if (other := next((taken[one] for one in marks if one in taken), None)) is not None:
                again = f"the values of {other} in {trace.folder} too: a copy, a bundle, or the same prompt"
                raise CallError(f"traces: expected each trace once, as it is one prompt, found {again}; leave one out")
            taken |= dict.fromkeys(marks, trace.folder)
        prompt = summarise(trace, thresholds, tolerance, training, rule)
        manifest = getattr(trace, "manifest", None) or {}
        shared = _with(shared, manifest, f"{prompt.layers} layers × {prompt.heads} heads")
        texts.append(manifest.get("prompt"))
        rows.add(values_of(prompt))
        draws = draws_of(prompt.canvas)
        for threshold in thresholds:
            if (shares := shares_of(prompt, threshold)) is not None:
                tests[threshold].add(shares, draws, seed)
            if len(texts) <= agreement.MOST_PROMPTS:
                patterns[threshold].append(Pattern.of(prompt, threshold))
        tokens.append(TokenShares.of(prompt))
        if choice and not prompt.canvas.settings.causal and len(choices) < placement_model.MOST_PROMPTS:
            choices.append(Choices.of(prompt))
        vocabulary |= prompt.canvas.vocabulary
        place = prompt.main_place(thresholds[0])
        places.append((place, "" if place is None else vocabulary.get(place.token, f"<{place.token}>")))
        known_from.append(prompt.known_from)

    late: dict[Key, np.ndarray] = {}
    for number, threshold in enumerate(thresholds):
        for token, (of_sinks, of_canvas) in leading_tokens(tokens, number).items():
            place = (*threshold.place, ("token", token), ("text", vocabulary.get(token)))
            late["composition.token", place] = of_sinks
            late["composition.token_on_canvas", place] = of_canvas
        if choices:
            gains = held_out_gains(choices, number)
            late |= {(f"choice.{name}", threshold.place): one for name, one in gains.items()}
    keys, whole = rows.whole(late)
    for column, (name, where) in enumerate(keys):
        if not has_every_sink(known_from, short_name(name), dict(where)):
            whole[:, column] = np.nan
    found = list(estimates(keys, whole, tests, seed))
    for threshold, of_prompts in patterns.items():
        for name, (mean, low, high, prompts) in prompt_agreement(of_prompts, seed).items():
            found.append(Estimate(name, dict(threshold.place), known(mean), known(low), known(high), prompts))
    statistics = tuple(sorted(found, key=lambda one: order_of(one.name)))
    sizes, settings = (len(texts), prompt.layers, prompt.heads, tolerance), prompt.canvas.settings
    how = (settings.corpus, tuple(places), Followed.of(trace).queries_text, settings.rule)
    return Analysis(statistics, *sizes, tuple(texts), keys, whole, *how)


def _with(shared: Mapping[str, Any], manifest: Mapping[str, Any], shape: str) -> dict[str, Any]:
    """Return what traces share with one more, None where unknown; CallError where it is of another model or kind."""
    found: dict[str, Any] = {"traces of one model": shape}
    if manifest:
        model, sampler = manifest.get("model") or {}, manifest.get("sampler") or {}
        stack, source = manifest.get("stack"), manifest.get("attends_to")
        whose = f"{stack or 'the model'}{'' if stack == source else ' to ' + (source or 'states of a caller')}"
        rules = [re.sub(r"@seed=\d+|,? ?\bseed=\d+", "", rule) for rule in hidden_rules(manifest)]
        found |= {
            "traces of one model (weights)": model.get("weight_hash"),
            "traces of one model (config.json)": model.get("config_hash"),
            "one stack's attention": whose if "stack" in manifest else None,
            "keys hidden in all traces or in none": bool(rules),
            "one rule of hiding": ", ".join(rules),
            "one cache": str(sampler.get("cache") or "none"),
            "guidance in all traces or in none": bool(sampler.get("guidance")),
            "one dtype": manifest.get("dtype"),
        }
    for name, one in found.items():
        first = shared.get(name)
        if first is not None and one is not None and first != one:
            pair = f"{str(first)[:100]} and {str(one)[:100]}"
            raise CallError(f"expected {name}, found {pair}; analyse each kind by itself, or compare them (--versus)")
    return {**found, **{name: one for name, one in shared.items() if one is not None}}


def compare(first: Analysis, second: Analysis, seed: int = 0) -> tuple[Estimate, ...]:
    """Return second minus first, of every statistic that both have, of paired prompts where both hold the same.

    Movement in columns of other queries has no value. CallError for other tolerances, corpora or thresholds.
    """
    same_corpus = first.corpus == second.corpus or not (first.corpus and second.corpus)
    if first.tolerance != second.tolerance or not same_corpus:
        raise CallError("expected two analyses of one tolerance and with the same training=; analyse one of them again")
    numbers = [{key: number for number, key in enumerate(one.keys)} for one in (first, second)]
    both = [key for key in numbers[0] if key in numbers[1]]
    ours, theirs = (one.values[:, [at[key] for key in both]] for one, at in zip((first, second), numbers, strict=True))
    if first.followed != second.followed:
        moving = [name.startswith("movement.") for name, _ in both]
        theirs[:, moving] = np.nan
    paired = first.prompt_texts == second.prompt_texts and None not in first.prompt_texts
    return tuple(estimates_of(both, interval_of_difference(ours, theirs, paired, seed)))
