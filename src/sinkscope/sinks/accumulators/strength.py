"""How attention is shared out: histograms of column sums, ε-curves, sinks per head, concentration."""

from typing import Any

import numpy as np

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep, ratio

LINEAR_BINS = 256  # a quarter of a query's worth each, up to 64
OCTAVES, BINS_PER_OCTAVE = 10, 8  # beyond, up to 65,536
EPSILON_STEP, EPSILON_BINS = 0.25, 41  # ε = 0, 0.25 … 10
MOST_SINKS = 32


def histogram_edges() -> np.ndarray:
    """Edges of the histogram's bins, in queries' worth; the last bin has no upper end."""
    beyond = 64 * 2.0 ** (np.arange(1, OCTAVES * BINS_PER_OCTAVE + 1) / BINS_PER_OCTAVE)
    return np.concatenate([np.arange(LINEAR_BINS + 1) / 4, beyond])


def epsilons() -> np.ndarray:
    """The thresholds of the ε-curves."""
    return np.arange(EPSILON_BINS) * EPSILON_STEP


def _tally(bins: np.ndarray, count: int) -> np.ndarray:
    """[layer, …] of bin numbers → int64 [layer, count]."""
    layers = len(bins)
    shifted = bins.reshape(layers, -1) + np.arange(layers)[:, None] * count
    return np.bincount(shifted.ravel(), minlength=layers * count).reshape(layers, count)


def count_above(excess: np.ndarray) -> np.ndarray:
    """How many columns of each layer exceed each threshold of the ε-curve; [layer, …] → int64 [layer, ε], NaN exceeds none."""
    # a column exceeds the first ceil(excess / 0.25) thresholds
    exceeded = np.clip(np.ceil(np.nan_to_num(excess, nan=-1) * (1 / EPSILON_STEP)), 0, EPSILON_BINS).astype(np.int32)
    return _tally(exceeded, EPSILON_BINS + 1)[:, ::-1].cumsum(axis=1)[:, -2::-1]


class ColumnHistogram(Accumulator):
    """Column sums of every layer in bins."""

    name = "histogram"

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {"columns": np.zeros((layers, LINEAR_BINS + OCTAVES * BINS_PER_OCTAVE + 1), np.int64)}

    def update(self, step: SeenStep) -> None:
        bins = (step.columns * 4).astype(np.int32)
        far = bins >= LINEAR_BINS
        if far.any():
            beyond = np.floor(np.log2(step.columns[far] / 64) * BINS_PER_OCTAVE).astype(np.int32)
            bins[far] = LINEAR_BINS + np.clip(beyond, 0, OCTAVES * BINS_PER_OCTAVE)
        self.arrays["columns"] += _tally(bins, self.arrays["columns"].shape[1])

    def result(self) -> dict[str, Any]:
        return {"edges": histogram_edges(), "columns": self.arrays["columns"]}


class EpsilonCurve(Accumulator):
    """How many columns exceed the mean of the others by more than ε, for ε from 0 to 10, in both units.

    ε · 4 is exact in binary, so the counts are those of Eq. 3 to the last one.
    """

    name = "epsilon"
    units = ("queries", "percent")

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {"above": np.zeros((2, layers, EPSILON_BINS), np.int64), "columns": np.zeros(layers, np.int64)}

    def update(self, step: SeenStep) -> None:
        for unit, excess in enumerate((step.excess, step.percent_excess)):
            self.arrays["above"][unit] += count_above(excess)
        self.arrays["columns"] += step.columns[0].size

    def result(self) -> dict[str, Any]:
        share = 1 - ratio(self.arrays["above"].sum(axis=1), self.arrays["columns"].sum())
        return {"epsilon": epsilons(), **{f"not_sinks_{unit}": share[number] for number, unit in enumerate(self.units)}}


class HeadStrengths(Accumulator):
    """Sinks, main sinks and concentration of every head: sums over steps."""

    name = "strength"
    counts = ("steps", "steps_with_sink", "sinks")
    sums = ("main", "largest", "sink_share", "entropy", "gini")

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        whole = {name: np.zeros((layers, heads), np.int64) for name in HeadStrengths.counts}
        return {
            **whole,
            **{name: np.zeros((layers, heads)) for name in HeadStrengths.sums},
            "per_head": np.zeros((layers, MOST_SINKS + 1), np.int64),
        }

    def update(self, step: SeenStep) -> None:
        found, (layers, heads, _) = step.concentration, step.columns.shape
        layer, head, key = np.nonzero(step.selected)
        place = layer * heads + head
        sinks = np.bincount(place, minlength=layers * heads).reshape(layers, heads)
        on_sinks = np.bincount(place, step.columns[layer, head, key], layers * heads).reshape(layers, heads)
        add = {
            "steps": 1,
            "steps_with_sink": sinks > 0,
            "sinks": sinks,
            "main": np.where(sinks > 0, found.largest, 0),
            "largest": found.largest,
            "sink_share": np.nan_to_num(ratio(on_sinks, found.total)),
            "entropy": found.entropy,
            "gini": found.gini,
        }
        for name, value in add.items():
            self.arrays[name] += value
        self.arrays["per_head"] += _tally(np.minimum(sinks, MOST_SINKS), MOST_SINKS + 1)

    def result(self) -> dict[str, Any]:
        arrays = self.arrays
        return {
            "main_sink_column_sum": ratio(arrays["main"], arrays["steps_with_sink"]),
            "steps_with_sink": ratio(arrays["steps_with_sink"], arrays["steps"]),
            **{name: ratio(arrays[name], arrays["steps"]) for name in ("sinks", "largest", "sink_share", "entropy", "gini")},
            "heads_with_that_many_sinks": arrays["per_head"],
        }
