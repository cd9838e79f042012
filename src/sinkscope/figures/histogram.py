"""Figure 3: how attention is shared out: a histogram of the column sums of all steps, layers and heads."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.counts import BINS_PER_QUERY, Counted, spread_note
from sinkscope.figures.digest import titled
from sinkscope.figures.figure import BLUE, VERMILLION, WIDE, WIDER, DrawnFigure, new_figure, number, plain

MOST_BINS = 100


def column_sum_histogram(digests: Sequence[Counted]) -> DrawnFigure:
    """Draws Figure 3; with several traces side by side, on the same axes and bins."""
    wide = bin_width(digests)
    many = len(digests) > 1
    figure = new_figure(WIDER if many else WIDE, 3.8)
    grid = figure.subplots(1, len(digests), squeeze=False, sharex=True, sharey=True)[0]
    rows: list[tuple[Any, ...]] = []
    for axes, one in zip(grid, digests, strict=True):
        counts = _coarser(one.counts, wide)
        edges = np.arange(len(counts) + 1) * wide / BINS_PER_QUERY
        _draw(axes, one, counts, edges)
        rows += [
            (one.label, number(low), number(high), int(count), number(one.threshold))
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    grid[0].set_ylabel(f"columns in a bin of {wide / BINS_PER_QUERY:g} (log scale)")
    figure.suptitle("Column sums over all steps, layers and heads", x=0.01, ha="left")
    header = ("model", "column_sum_from", "column_sum_to", "columns", "threshold_column_sum")
    return DrawnFigure(
        "figure3-column-sums",
        titled("Figure 3: column sums of all steps, layers and heads", digests),
        _caption(digests),
        figure,
        header,
        rows,
    )


def bin_width(digests: Sequence[Counted]) -> int:
    """Quarters of a query's worth in a bin, the same for all panels: as fine as at most a hundred bins allow."""
    largest = max(int(np.flatnonzero(one.counts).max(initial=0)) + 1 for one in digests)
    return next(width for width in (1, 2, 4, 8, 20, 40, 80, 200, 400, largest) if math.ceil(largest / width) <= MOST_BINS)


def _coarser(counts: np.ndarray, wide: int) -> np.ndarray:
    filled = counts[: int(np.flatnonzero(counts).max(initial=0)) + 1]
    return np.pad(filled, (0, -len(filled) % wide)).reshape(-1, wide).sum(axis=1)


def _draw(axes: Any, one: Counted, counts: np.ndarray, edges: np.ndarray) -> None:
    axes.stairs(counts, edges, fill=True, color=BLUE, alpha=0.85, baseline=0.5)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.set_xlim(left=0)
    axes.axvline(1, color="black", linestyle=":", linewidth=1)
    axes.axvline(one.threshold, color=VERMILLION, linestyle="--", linewidth=1.2)
    share = one.sinks / max(1, one.columns)
    axes.text(
        0.98,
        0.97,
        f"dotted: equal shares for all tokens, 1\ndashed: Eq. 3, ε = {one.excess:g}\n1 + ε(1 − 1/S) = {one.threshold:.2f}\n"
        f"right of it: {one.sinks:,} of {one.columns:,} columns ({share:.2%})",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize="small",
    )
    queries = ", running sum over queries" if one.causal else ""
    axes.set_title(f"{plain(one.heading)},\nS = {one.positions_text}{queries}")
    axes.set_xlabel("column sum, queries' worth of attention")


def _caption(digests: Sequence[Counted]) -> str:
    shares = "; ".join(f"{one.label}: {one.sinks / max(1, one.columns):.2%} of the columns are sinks" for one in digests)
    causal = (
        " For the autoregressive model these are running sums over all queries so far, in which early tokens were seen by more "
        "queries; that alone makes their columns larger."
        if any(one.causal for one in digests)
        else ""
    )
    return (
        f"Every column of every head, layer and step is counted once; without any preference each would be 1. {shares} by Eq. 3 "
        f"(right of the dashed line).{causal}{spread_note(digests)} "
        "What it does not show: which tokens they are, and that the columns of successive steps are "
        "nearly the same, so the counts are not independent observations. A threshold in queries' worth gets "
        "easier as the canvas gets longer."
    )
