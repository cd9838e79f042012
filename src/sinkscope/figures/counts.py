"""What Figures 3, 5, 9, 10 and norms draw: of one trace (`digest.Digest`), or of all prompts of a folder of statistics."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import TraceError
from sinkscope.sinks.accumulators import Statistics, histogram_edges
from sinkscope.sinks.accumulators.norms import KINDS
from sinkscope.traces import read_statistics

BINS_PER_QUERY = 4


@dataclass(frozen=True)
class Counts:
    """A folder of statistics, as the figures read it.

    Attributes:
        manifest: of the folder.
        excess: ε of Eq. 3, in queries' worth, with which the prompts were counted.
        causal: whether the model is autoregressive.
        steps: of all prompts.
        positions: tokens of a canvas, on average.
        sinks: how many columns are sinks; columns: how many there are.
        layer_counts: columns of each layer in bins of a quarter of a query's worth, from 0 upwards. Exact up to 64; beyond,
            statistics keep wider bins, whose columns are spread evenly over the quarters they span.
        above: how many columns exceed the mean of the others by more than ε = 0, 0.25 … 10, in queries' worth and in percent.
        sink_steps: in how many steps each head has a sink.
        mean_strength: column sum of the main sink, mean over those steps; NaN where there is none.
        norms: of every kind that was recorded, means and standard deviations of sinks and others.
    """

    manifest: dict[str, Any] = field(repr=False)
    excess: float
    causal: bool
    steps: int
    positions: int
    sinks: int
    columns: int
    layer_counts: Int[np.ndarray, "layer bin"] = field(repr=False)
    above: Int[np.ndarray, "unit epsilon"] = field(repr=False)
    sink_steps: Int[np.ndarray, "layer head"] = field(repr=False)
    mean_strength: Float[np.ndarray, "layer head"] = field(repr=False)
    norms: dict[str, Float[np.ndarray, "moment layer group"]] = field(repr=False)

    @property
    def counts(self) -> Int[np.ndarray, " bin"]:
        """`layer_counts` of all layers."""
        return self.layer_counts.sum(axis=0)


def open_counts(folder: str | Path) -> Counts:
    """Reads a folder of statistics for the figures.

    Raises:
        TraceError: not there, damaged, or without a whole prompt.
        SinkscopeError: written by another version.
    """
    manifest, arrays, _ = read_statistics(folder)
    statistics = Statistics.from_arrays(arrays)
    strength, epsilon = statistics.strength.arrays, statistics.epsilon.arrays
    columns, calls = int(epsilon["columns"].sum()), int(strength["steps"].sum())
    if not columns:
        raise TraceError(f"{folder} counts no column; there is nothing to draw")
    return Counts(
        manifest=manifest,
        excess=statistics.excess,
        causal=statistics.causal,
        steps=int(strength["steps"].max()),
        positions=round(columns / calls),
        sinks=int(strength["sinks"].sum()),
        columns=columns,
        layer_counts=quarters(statistics.histogram.arrays["columns"]),
        above=epsilon["above"].sum(axis=1),
        sink_steps=strength["steps_with_sink"],
        mean_strength=statistics.strength.result()["main_sink_column_sum"],
        norms=_norms(statistics.norms.arrays),
    )


def quarters(histogram: Int[np.ndarray, "layer bin"]) -> Int[np.ndarray, "layer quarter"]:
    """The histogram of `accumulators.Statistics` in bins of a quarter of a query's worth; each layer keeps its number of columns."""
    last = int(np.flatnonzero(histogram.any(axis=0)).max(initial=0)) + 1
    edges = np.append(histogram_edges(), np.inf)[: last + 1]
    edges[-1] = min(edges[-1], 2 * edges[-2] + 1)  # of the last bin of all, which has no upper end
    fine = np.arange(int(np.ceil(edges[-1] * BINS_PER_QUERY)) + 1) / BINS_PER_QUERY
    rising = np.concatenate([np.zeros((len(histogram), 1), np.int64), histogram[:, :last].cumsum(axis=1)], axis=1)
    return np.diff(np.rint([np.interp(fine, edges, one) for one in rising]).astype(np.int64), axis=1)


def _norms(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for number, kind in enumerate(KINDS):
        count, total, square = (arrays[name][number].T.astype(np.float64) for name in ("count", "sum", "square"))
        if total.any():
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = total / count
                found[kind] = np.stack([mean, np.sqrt(np.maximum(square / count - mean**2, 0))])
    return found
