"""What Figures 3, 5, 9, 10 and norms draw: of one trace (`digest.Digest`), or of all prompts of a folder of statistics."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import TraceError
from sinkscope.statistics import Summary
from sinkscope.statistics.norms import NORM_KINDS, Moments
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
    summary = Summary.from_arrays(arrays)
    if not summary.columns:
        raise TraceError(f"{folder} counts no column; there is nothing to draw")
    return Counts(
        manifest=manifest,
        excess=summary.excess,
        causal=summary.causal,
        steps=summary.steps,
        positions=summary.positions,
        sinks=summary.sinks,
        columns=summary.columns,
        layer_counts=summary.quarters,
        above=summary.above.sum(axis=1),
        sink_steps=summary.steps_with_sink,
        mean_strength=summary.mean_strength,
        norms=_norms(summary.norms),
    )


def _norms(found: Moments) -> dict[str, np.ndarray]:
    both = np.stack([found.mean, found.deviation])  # [moment, kind, group, layer]
    return {kind: both[:, number].swapaxes(1, 2) for number, kind in enumerate(NORM_KINDS) if found.total[number].any()}
