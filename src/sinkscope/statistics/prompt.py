"""The summary of one prompt, made by feeding its steps one by one, so that a trace may be larger than memory."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import CallError
from sinkscope.sinks.definition import uniform_rows
from sinkscope.sinks.drift import IsSink
from sinkscope.sinks.followed_columns import WINDOW, uncounted
from sinkscope.sinks.tracking import MainPlace, fill_dips, main_place
from sinkscope.statistics.prompt_canvas import PromptCanvas, PromptSettings
from sinkscope.statistics.step import (
    LINEAR_BINS,
    Candidates,
    FollowedSinks,
    RecordedStep,
    SummedColumns,
    count_above,
    count_far,
    count_quarters,
)
from sinkscope.statistics.thresholds import Threshold

Record = TypeVar("Record")


@dataclass(frozen=True, eq=False)
class StepSummary:
    """The numbers kept of a step, or of all: sinks and largest column of each head, also of the columns followed."""

    counts: Int[np.ndarray, "*step threshold layer head"]
    shares: Float[np.ndarray, "*step threshold layer head"]
    top: Int[np.ndarray, "*step layer head"]
    largest: Float[np.ndarray, "*step layer head"]
    total: Float[np.ndarray, "*step layer head"]
    main_position: Int[np.ndarray, "*step layer head"]
    main_column: Float[np.ndarray, "*step layer head"]
    main_excess: Float[np.ndarray, "*step layer head"]
    main_percent: Float[np.ndarray, "*step layer head"]

    @classmethod
    def of(cls, step: RecordedStep) -> "StepSummary":
        columns, followed, sinks = step.columns, step.followed, step.columns.candidates
        layers, heads = columns.total.shape
        place = sinks.layer * heads + sinks.head
        on_sinks = sinks.tally(place, layers * heads, sinks.column).reshape(-1, layers, heads)
        return cls(
            sinks.tally(place, layers * heads).reshape(-1, layers, heads).astype(np.int32),
            (on_sinks / np.maximum(columns.total, np.finfo(np.float32).tiny)).astype(np.float32),
            columns.top,
            columns.at_top(columns.sums),
            columns.total,
            followed.top,
            followed.at_top(followed.sums),
            followed.at_top(followed.excess),
            followed.at_top(followed.percent),
        )


@dataclass(frozen=True, eq=False)
class PromptSummary:
    """One prompt. In *followed columns*, of causal models and block diffusion those of the 16 newest queries, sinks are
    followed; the main sink is the largest one that is a sink (by the rule ``uniform`` that of the largest excess).

    Attributes:
        thresholds: at which statistics are computed; ``counted_at``: at which sinks were counted, maybe more.
        above: how many columns exceed each ε of `thresholds.EPSILONS`, in the units `thresholds.UNITS`.
        quarters: column sums in bins of a quarter of a query's worth; ``far``: from 64 on, in the bins of many prompts.
        mean_columns: followed columns, mean over layers and heads; NaN beyond the canvas.
        known_from: the least ε, in each unit, at which no column that was not kept can be a sink.
    """

    canvas: PromptCanvas = field(repr=False)
    thresholds: tuple[Threshold, ...]
    counted_at: tuple[Threshold, ...] = field(repr=False)
    tolerance: int
    by_step: StepSummary = field(repr=False)
    tally: Int[np.ndarray, "threshold step position"] = field(repr=False)
    above: Int[np.ndarray, "unit layer epsilon"] = field(repr=False)
    quarters: Int[np.ndarray, "layer quarter"] = field(repr=False)
    far: Int[np.ndarray, "layer far_bin"] = field(repr=False)
    mean_columns: Float[np.ndarray, "step key"] = field(repr=False)
    followed: FollowedSinks = field(repr=False)
    kept_records: Mapping[type, Any] = field(repr=False)
    known_from: tuple[float, float]

    @property
    def steps(self) -> int:
        return len(self.by_step.top)

    @property
    def uncounted(self) -> int:
        """The first steps, in which sinks are not followed (see `followed_columns.uncounted`)."""
        return self.followed.uncounted

    @property
    def layers(self) -> int:
        return self.followed.layers

    @property
    def heads(self) -> int:
        return self.followed.heads

    @property
    def columns(self) -> int:
        """How many columns there are: steps × layers × heads × tokens."""
        return int(self.canvas.lengths.sum()) * self.layers * self.heads

    @property
    def histogram(self) -> Int[np.ndarray, "layer bin"]:
        """Column sums in the bins of `step.histogram_edges`."""
        near = self.quarters[:, :LINEAR_BINS]
        return np.concatenate([np.pad(near, ((0, 0), (0, LINEAR_BINS - near.shape[1]))), self.far], axis=1)

    def kept(self, record: type[Record]) -> Record:
        """Return the record that a statistic's ``keep`` made of every step, [step, …], by its class."""
        return self.kept_records[record]

    def number(self, threshold: Threshold) -> int:
        """Return the index of a threshold along the axis ``threshold``."""
        return self.counted_at.index(threshold)

    def counts(self, threshold: Threshold) -> Int[np.ndarray, "step layer head"]:
        return self.by_step.counts[:, self.number(threshold)]

    def shares(self, threshold: Threshold) -> Float[np.ndarray, "step layer head"]:
        """Return the part of each head's attention that lies on its sinks."""
        return self.by_step.shares[:, self.number(threshold)]

    def has_sink(self, threshold: Threshold) -> Bool[np.ndarray, "step layer head"]:
        return self.counts(threshold) > 0

    def sinks(self, threshold: Threshold) -> int:
        return int(self.counts(threshold).sum())

    def sinks_by_token(self, threshold: Threshold) -> Int[np.ndarray, " token"]:
        """Return how often each of ``canvas.token_ids`` is a sink, over steps, layers and heads."""
        indices, tally = self.canvas.token_indices, self.tally[self.number(threshold)]
        return np.bincount(indices[indices >= 0], tally[indices >= 0], len(self.canvas.token_ids)).astype(np.int64)

    def main_at(self, threshold: Threshold) -> Int[np.ndarray, "step layer head"]:
        """Return the position of each head's main sink, −1 without one; dips up to the tolerance are filled."""
        size = self.by_step.main_excess if threshold.unit == "queries" else self.by_step.main_percent
        there = (size > threshold.excess) & (np.arange(self.steps) >= self.uncounted)[:, None, None]
        return fill_dips(np.where(there, self.by_step.main_position, -1), self.tolerance)

    def main_place(self, threshold: Threshold) -> MainPlace | None:
        """Return where most heads have their main sink."""
        counted = slice(self.uncounted, None)
        return main_place(self.main_at(threshold)[counted], self.mean_columns[counted], self.canvas.tokens[counted])

    def is_sink_at(self, threshold: Threshold) -> IsSink:
        """Return the function that says whether followed columns are sinks."""
        return partial(self.followed.contain, threshold)


@dataclass(frozen=True, eq=False)
class CountedStep:
    """What is kept of one step: the candidates ``sinks``, those in which sinks are ``followed``, and other parts of a
    `PromptSummary`; ``records``: of each statistic that keeps one.
    """

    summary: StepSummary
    sinks: Candidates
    followed: Candidates
    means: Float[np.ndarray, " key"]
    above: Int[np.ndarray, "unit layer epsilon"]
    quarters: Int[np.ndarray, "layer quarter"]
    far: Int[np.ndarray, "layer far_bin"]
    records: Sequence[Any]


class PromptFeed:
    """Takes in the steps of one prompt in order and makes its summary; ``keeps``: `Statistic.keep` of each one."""

    def __init__(
        self, settings: PromptSettings, thresholds: Sequence[Threshold], tolerance: int, keeps: Iterable[Callable]
    ) -> None:
        self.settings, self.thresholds, self.tolerance = settings, tuple(thresholds), tolerance
        self._rows: deque[np.ndarray] = deque(maxlen=WINDOW)
        self._canvas: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
        self._kept: list[tuple[StepSummary, np.ndarray, np.ndarray, Candidates]] = []
        self._keeps, self._records = tuple(keeps), dict[type, tuple[int, list[Any]]]()
        self._above: Any = 0
        self._far: Any = 0
        self._quarters = np.zeros((0, 0), np.int64)
        self._known_from = (-np.inf, -np.inf)

    @property
    def steps(self) -> int:
        return len(self._canvas)

    def feed(self, arrays: Mapping[str, np.ndarray], counted: "CountedStep | None" = None) -> None:
        """Take in the next step, arrays as in `axes.TRACE_AXES`, or its numbers ``counted`` beside its canvas;
        CallError for columns not finite or not fitting.
        """
        settings, columns = self.settings, arrays.get("column_sums")
        length = len(arrays["tokens"]) if columns is None else columns.shape[-1]
        before = len(self._canvas[-1][0]) if self._canvas else 0
        if length < before and (settings.causal or length < settings.prompt_length):  # no answer is left of diffusion
            found = f"{length} tokens behind a step of {before}"
            raise CallError(f"expected a canvas that grows, found {found}; record each text by itself")
        step = self._counted(arrays) if counted is None else counted
        written = arrays.get("written")
        masked = np.asarray(arrays.get("masked", np.zeros(length))).astype(bool)
        self._canvas.append((np.array(arrays["tokens"]), masked, None if written is None else np.array(written)))
        tally = step.sinks.tally(step.sinks.key, length).astype(np.int32)
        self._kept.append((step.summary, tally, step.means, step.followed))
        self._above, self._far, quarters = self._above + step.above, self._far + step.far, step.quarters
        room = [(0, max(0, quarters.shape[1] - self._quarters.shape[1]))]
        self._quarters = np.pad(self._quarters, [(0, len(quarters) - len(self._quarters)), *room])
        self._quarters[:, : quarters.shape[1]] += quarters
        for record in step.records:
            begun, records = self._records.setdefault(type(record), (self.steps, []))
            if len(records) != self.steps - begun:
                raise CallError(f"{type(record).__name__}: expected one record of each step from the first on")
            records.append(record)

    def _counted(self, arrays: Mapping[str, np.ndarray]) -> "CountedStep":
        settings, newest = self.settings, None
        if settings.causal:  # a key that came later counts 0 for the queries before it
            row = np.array(arrays["last_query"], np.float32)
            self._rows.append(np.concatenate([row, uniform_rows(row)], axis=1))
            summed = np.zeros(self._rows[-1].shape, np.float64)
            for row in self._rows:
                summed[..., : row.shape[-1]] += row
            uniform = summed[:, -1:] if settings.rule == "uniform" else None
            rows, filled = summed[:, :-1].astype(np.float32), len(self._rows) / WINDOW
            newest = SummedColumns.of(rows, self.thresholds, uniform, filled)
        elif "newest_columns" in arrays:
            newest = SummedColumns.of(arrays["newest_columns"], self.thresholds)
        step = RecordedStep.of(arrays, self.thresholds, settings, newest)
        if (kept := settings.kept) is not None and kept < step.length:
            for one in (step.columns, *([] if settings.causal else [step.followed])):
                least = map(max, self._known_from, one.least_known(kept))
                self._known_from = (next(least), next(least))
        columns, followed = step.columns, step.followed
        return CountedStep(
            StepSummary.of(step),
            columns.candidates,
            followed.candidates,
            followed.sums.mean(axis=(0, 1), dtype=np.float64),
            np.stack([count_above(columns.excess), count_above(columns.percent)]),
            count_quarters(columns.sums),
            count_far(columns.sums),
            [found for keep in self._keeps if (found := keep(step)) is not None],
        )

    def finish(self, vocabulary: Mapping[int, str] | None = None) -> PromptSummary:
        """Return the summary of all steps, one at least; ``vocabulary``: {token: how it reads}."""
        width, steps = max(len(tokens) for tokens, _, _ in self._canvas), len(self._canvas)
        by_step, candidates = stack_steps([one for one, *_ in self._kept]), [one for *_, one in self._kept]
        _, layers, heads = by_step.top.shape
        tally = np.zeros((len(self.thresholds), steps, width), np.int32)
        means = np.full((steps, width), np.nan)
        for number, (_, one, mean, _) in enumerate(self._kept):
            tally[:, number, : one.shape[1]] = one
            means[number, : len(mean)] = mean
        return PromptSummary(
            canvas=PromptCanvas.of(self._canvas, self.settings, vocabulary or {}),
            thresholds=self.thresholds,
            counted_at=self.thresholds,
            tolerance=self.tolerance,
            by_step=by_step,
            tally=tally,
            above=self._above,
            quarters=self._quarters,
            far=self._far,
            mean_columns=means,
            followed=FollowedSinks(candidates, layers, heads, uncounted(self.settings.causal, steps)),
            kept_records={kind: stack_steps(records) for kind, (_, records) in self._records.items()},
            known_from=self._known_from,
        )


def stack_steps(records: Sequence[Record]) -> Record:
    """Return records of single steps as one record: every array gets an axis ``step`` in front."""
    names = [one.name for one in fields(records[0])]  # type: ignore[arg-type]
    return type(records[0])(**{name: np.stack([getattr(one, name) for one in records]) for name in names})
