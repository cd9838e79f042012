"""Counts of columns: how many exceed each ε, and how many fall into each bin of a histogram.

The histogram of one prompt has exact quarters of a query's worth, that of many prompts a fixed number of bins: up to 64 queries' worth
quarters too; beyond, eight to an octave, up to 65,536.
"""

import numpy as np
from jaxtyping import Float, Int

from sinkscope.statistics.thresholds import EPSILON_STEP, EPSILONS

BINS_PER_QUERY = 4
LINEAR_BINS = 256
OCTAVES, BINS_PER_OCTAVE = 10, 8
FAR_BINS = OCTAVES * BINS_PER_OCTAVE + 1


def count_above(excess: Float[np.ndarray, "layer *columns"]) -> Int[np.ndarray, "layer epsilon"]:
    """Return how many columns of each layer exceed each ε of `EPSILONS`; a column that is NaN exceeds none."""
    layers, kinds = len(excess), len(EPSILONS) + 1
    with np.errstate(invalid="ignore"):
        above = np.flatnonzero(excess > 0)
    exceeded = np.minimum(np.ceil(excess.ravel()[above] * (1 / EPSILON_STEP)), kinds - 1).astype(
        np.int64
    )  # the first so many of the grid
    table = np.bincount(above // excess[0].size * kinds + exceeded, minlength=layers * kinds).reshape(layers, kinds)
    return table[:, ::-1].cumsum(axis=1)[:, -2::-1]


def histogram_edges() -> Float[np.ndarray, " bin"]:
    """Return the lower edges of the bins of many prompts, in queries' worth; the last bin has no upper end."""
    beyond = 64 * 2.0 ** (np.arange(1, OCTAVES * BINS_PER_OCTAVE + 1) / BINS_PER_OCTAVE)
    return np.concatenate([np.arange(LINEAR_BINS + 1) / BINS_PER_QUERY, beyond])


def count_quarters(columns: Float[np.ndarray, "layer head key"]) -> Int[np.ndarray, "layer quarter"]:
    """Return how many columns of each layer fall into each quarter of a query's worth, from 0 up to the largest column."""
    quarter = (columns * BINS_PER_QUERY).astype(np.int32)
    layers, bins = len(columns), int(quarter.max()) + 1
    quarter += (np.arange(layers, dtype=np.int32) * bins)[:, None, None]
    return np.bincount(quarter.ravel(), minlength=layers * bins).reshape(layers, bins)


def count_far(columns: Float[np.ndarray, "layer head key"]) -> Int[np.ndarray, "layer far_bin"]:
    """Return how many columns of each layer fall into each bin beyond 64 queries' worth."""
    layer, _, _ = far = np.nonzero(columns >= LINEAR_BINS / BINS_PER_QUERY)
    beyond = np.floor(np.log2(columns[far] / (LINEAR_BINS / BINS_PER_QUERY)) * BINS_PER_OCTAVE).astype(np.int64)
    place = layer * FAR_BINS + np.clip(beyond, 0, FAR_BINS - 1)
    return np.bincount(place, minlength=len(columns) * FAR_BINS).reshape(len(columns), FAR_BINS)


def quarters_of(histogram: Int[np.ndarray, "layer bin"]) -> Int[np.ndarray, "layer quarter"]:
    """Return the histogram of many prompts in quarters of a query's worth.

    Columns in the wide bins beyond 64 are spread evenly over the quarters they span; each layer keeps its number of columns.
    """
    last = int(np.flatnonzero(histogram.any(axis=0)).max(initial=0)) + 1
    edges = np.append(histogram_edges(), np.inf)[: last + 1]
    edges[-1] = min(edges[-1], 2 * edges[-2] + 1)  # of the last bin of all, which has no upper end
    fine = np.arange(int(np.ceil(edges[-1] * BINS_PER_QUERY)) + 1) / BINS_PER_QUERY
    rising = np.concatenate([np.zeros((len(histogram), 1), np.int64), histogram[:, :last].cumsum(axis=1)], axis=1)
    return np.diff(np.rint([np.interp(fine, edges, one) for one in rising]).astype(np.int64), axis=1)
