"""The analysis of a set of traces: every statistic at every threshold, as a mean over prompts with its interval."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.errors import CallError
from sinkscope.sinks.finding import Recorded
from sinkscope.statistics.agreement import Pattern, PromptAgreement
from sinkscope.statistics.composition import TokenShares, leading_tokens
from sinkscope.statistics.intervals import LEVEL, interval_of_difference
from sinkscope.statistics.move_triggers import TriggerTest, draws_of, shares_of
from sinkscope.statistics.one_kind import Kind, same_kind, same_model
from sinkscope.statistics.placement_model import Choices, PlacementModel
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.prompt_rows import Estimate, PromptRows, estimates, estimates_of, known
from sinkscope.statistics.statistic import (
    Key,
    definition_of,
    has_every_sink,
    held,
    order_of,
    short_name,
    summarise,
    values_of,
)
from sinkscope.statistics.thresholds import THRESHOLDS, Threshold
from sinkscope.traces.bundles import copies_share
from sinkscope.traces.reading import Trace, as_trace

MOST_TOLD = 12
"""Places that a message names."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a set of traces of one model says.

    Attributes:
        prompts: number of traces; prompt_texts: their prompts, by which two analyses are paired.
        values: [prompt, key], the numbers behind the means; keys: their names and places.
        corpus: checksum of the counts of the training corpus; 0 without.
    """

    statistics: tuple[Estimate, ...] = field(repr=False)
    prompts: int
    layers: int
    heads: int
    tolerance: int
    prompt_texts: tuple[Any, ...] = field(repr=False)
    keys: tuple[Key, ...] = field(repr=False)
    values: Float[np.ndarray, "prompt key"] = field(repr=False)
    corpus: int = field(default=0, repr=False)

    def find(self, name: str, **place: Any) -> list[Estimate]:
        """Return the estimates of a name whose place has all of this.

        ``find("movement.drift", excess=3.0, unit="queries")``

        Raises:
            CallError: no statistic of that name, or none at such a place.
        """
        of_name = [one for one in self.statistics if one.name == name]
        if not of_name:
            names = ", ".join(dict.fromkeys(one.name for one in self.statistics))
            raise CallError(f"no statistic {name!r}; there are {names}")
        for key, value in place.items():
            there = list(dict.fromkeys(one.place.get(key) for one in of_name))
            if value not in there:
                raise CallError(f"{key}: expected one at which {name} is given, {there[:MOST_TOLD]}, found {value!r}")
        return [one for one in of_name if all(one.place.get(key) == value for key, value in place.items())]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, definitions once."""
        definitions = {name: vars(definition_of(name)) for name in dict.fromkeys(one.name for one in self.statistics)}
        sizes = {name: getattr(self, name) for name in ("prompts", "layers", "heads", "tolerance")}
        statistics = [one.as_dict() for one in self.statistics]
        return {**sizes, "level": LEVEL, "definitions": definitions, "statistics": statistics}


class _Prompts:
    """Collects summaries of prompts for an analysis: their own numbers, and what only several prompts show together."""

    def __init__(self, thresholds: Sequence[Threshold], choice: bool, seed: int) -> None:
        self.thresholds, self.choice, self.seed = tuple(thresholds), choice, seed
        self.rows, self.placement = PromptRows(), PlacementModel()
        self.tests = {threshold: TriggerTest() for threshold in thresholds}
        self.agreements = {threshold: PromptAgreement() for threshold in thresholds}
        self.tokens: list[TokenShares] = []
        self.vocabulary: dict[int, str] = {}
        self.known_from: list[tuple[float, float]] = []

    def add(self, prompt: PromptSummary) -> None:
        self.rows.add(values_of(prompt))
        draws = draws_of(prompt.canvas)
        for threshold in self.thresholds:
            if (shares := shares_of(prompt, threshold)) is not None:
                self.tests[threshold].add(shares, draws, self.seed)
            self.agreements[threshold].add(Pattern.of(prompt, threshold))
        self.tokens.append(TokenShares.of(prompt))
        if self.choice and not prompt.canvas.settings.causal:
            self.placement.add(Choices.of(prompt))
        self.vocabulary |= prompt.canvas.vocabulary
        self.known_from.append(prompt.known_from)

    def result(self) -> tuple[tuple[Key, ...], np.ndarray, tuple[Estimate, ...]]:
        late: dict[Key, np.ndarray] = {}
        for number, threshold in enumerate(self.thresholds):
            for token, (of_sinks, of_canvas) in leading_tokens(self.tokens, number).items():
                place = (*threshold.place, ("token", token), ("text", self.vocabulary.get(token)))
                late["composition.token", place] = of_sinks
                late["composition.token_on_canvas", place] = of_canvas
            if self.placement.prompts:
                gains = self.placement.result(number)
                late |= {(f"choice.{name}", threshold.place): one for name, one in gains.items()}
        keys, whole = self.rows.whole(late)
        for column, (name, where) in enumerate(keys):
            if not has_every_sink(self.known_from, short_name(name), dict(where)):
                whole[:, column] = np.nan
        found = list(estimates(keys, whole, self.tests, self.seed))
        for threshold, agreement in self.agreements.items():
            for name, (*numbers, prompts) in agreement.result(self.seed).items():
                found.append(Estimate(name, dict(threshold.place), *map(known, numbers), prompts))
        return keys, whole, tuple(sorted(found, key=lambda one: order_of(one.name)))


def analyse(
    traces: Iterable[Recorded | str | Path] | Trace | str | Path,
    thresholds: Sequence[Threshold] = THRESHOLDS,
    *,
    tolerance: int = 0,
    training: Mapping[int, int] | None = None,
    choice: bool = True,
    seed: int = 0,
) -> Analysis:
    """Return every statistic of a set of traces of one model; of a trace a few steps at a time are in memory.

    Args:
        traces: one a prompt, open ones or their paths; the prompt is the unit of evidence.
        thresholds: of Eq. 3; one that stands twice counts once.
        tolerance: steps without a sink that a track and a main sink survive.
        training: how often each token id stands in the training corpus.
        choice: fits the placement model, by far the longest part with many prompts.
        seed: of the resampled prompts and the shifted commits.

    Raises:
        CallError: no trace, one given twice, traces of different models or kinds (see `one_kind`), or thresholds that
            cannot be.
        SinkscopeError: a trace without a whole step.
    """
    thresholds = tuple(dict.fromkeys(thresholds))
    prompts = _Prompts(thresholds, choice, seed)
    shape: tuple[int, int] | None = None
    weights: tuple[Any, Any, Any] | None = None
    kind: Kind | None = None
    texts: list[Any] = []
    taken: dict[Path | str, Path] = {}
    given = [traces] if isinstance(traces, Trace | str | Path) else traces
    if isinstance(given, Sequence) and len({*map(id, given)}) < len(given):
        raise CallError("traces: expected each trace once, as it is one prompt, found one object twice")
    for trace in given:
        trace = as_trace(trace)
        _refuse_again(trace, taken)
        prompt = summarise(trace, thresholds, tolerance, training)
        found = (prompt.layers, prompt.heads)
        if shape is not None and found != shape:
            sizes = f"{shape[0]} layers × {shape[1]} heads as in the first; found {found[0]} × {found[1]}"
            raise CallError(f"expected traces of one model, {sizes}. Analyse each model by itself")
        shape = found
        manifest = held(trace, "manifest") or {}
        model = manifest.get("model") or {}
        size = model.get("vocabulary")
        if training and isinstance(size, int) and min(training) >= size:
            raise CallError(f"training: expected counts of the model's tokens, 0 to {size - 1}, found none of them")
        weights, kind = same_model(weights, model), same_kind(kind, manifest)
        texts.append(manifest.get("prompt"))
        prompts.add(prompt)
    if shape is None:
        raise CallError("expected at least one trace, found none")
    keys, whole, statistics = prompts.result()
    corpus = PromptSettings(training=training).corpus
    return Analysis(statistics, len(whole), *shape, tolerance, tuple(texts), keys, whole, corpus)


def compare(first: Analysis, second: Analysis, seed: int = 0) -> tuple[Estimate, ...]:
    """Return second minus first, of every statistic that both have: what is left of a drift with one block, or with
    blocks reversed.

    Where both hold the same prompts in the same order the prompts are paired, which makes the interval narrower.

    Raises:
        CallError: they were made with different tolerances or training corpora, or at no threshold in common.
    """
    same_corpus = first.corpus == second.corpus or not (first.corpus and second.corpus)
    if first.tolerance != second.tolerance or not same_corpus:
        raise CallError("expected two analyses of one tolerance and with the same training=; analyse one of them again")
    points = []
    for one in (first, second):  # the curve over ε has every threshold in every analysis
        places = [dict(place) for name, place in one.keys if not name.startswith("epsilon.")]
        points.append({(at["excess"], at["unit"]) for at in places if "excess" in at})
    if all(points) and not points[0] & points[1]:
        told = " and ".join(", ".join(f"{excess:g} {unit}" for excess, unit in sorted(one)) for one in points)
        raise CallError(f"expected two analyses with a threshold in common, found {told}; analyse one of them again")
    numbers = [{key: number for number, key in enumerate(one.keys)} for one in (first, second)]
    both = [key for key in numbers[0] if key in numbers[1]]
    ours, theirs = (one.values[:, [at[key] for key in both]] for one, at in zip((first, second), numbers, strict=True))
    paired = first.prompt_texts == second.prompt_texts and None not in first.prompt_texts
    return tuple(estimates_of(both, interval_of_difference(ours, theirs, paired, seed)))


def _refuse_again(trace: Any, taken: dict[Path | str, Path]) -> None:
    """Refuse a trace that was taken in before, which would make intervals too narrow; note its path and checksums."""
    if not isinstance(trace, Trace):
        return
    marks = {trace.folder.resolve(), *copies_share(trace)}
    if (other := next((taken[one] for one in marks if one in taken), None)) is not None:
        again = f"the values of {other} in {trace.folder} too: a copy, a bundle, or the same prompt"
        raise CallError(f"traces: expected each trace once, as it is one prompt, found {again}; leave one out")
    taken.update(dict.fromkeys(marks, trace.folder))
