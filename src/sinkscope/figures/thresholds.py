"""Figure 10: the share of tokens that are not sinks, against ε, in both units."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.counts import Counted
from sinkscope.figures.digest import titled
from sinkscope.figures.figure import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, WIDE, DrawnFigure, new_figure, number, plain
from sinkscope.sinks.accumulators import epsilons

UNITS = ("queries", "percent")
LOOKS = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (INK, "P"))
PAPER_EPSILON, PAPER_SHARE = 3.0, 0.96


def share_not_sinks(digests: Sequence[Counted]) -> DrawnFigure:
    """Draws Figure 10; several traces are curves in the same two panels."""
    figure = new_figure(WIDE, 3.6)
    grid = figure.subplots(1, 2, sharey=True)
    rows: list[tuple[Any, ...]] = []
    for axes, unit, name in zip(grid, UNITS, ("queries' worth of attention", "percent of all attention"), strict=True):
        for at, one in enumerate(digests):
            shares = not_sinks(one)[UNITS.index(unit)]
            colour, marker = LOOKS[at % len(LOOKS)]
            label = f"{plain(one.label)}, S = {one.positions_text}"
            axes.plot(epsilons(), shares * 100, color=colour, marker=marker, markevery=4, markersize=4, linewidth=1.2, label=label)
            rows += [
                (one.label, one.positions, unit, number(e), number(share), one.columns) for e, share in zip(epsilons(), shares, strict=True)
            ]
        axes.axvline(one.excess, color="black", linestyle=":", linewidth=0.9)
        axes.set_xlabel(f"threshold ε, {name}")
        axes.set_xlim(-0.2, 10.2)
        axes.set_xticks(range(0, 11, 2))
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
    lowest = min(float(not_sinks(one).min()) for one in digests) * 100
    grid[0].set_ylim(lowest - 0.05 * (100 - lowest), 100 + 0.06 * (100 - lowest))
    for axes in grid:  # the paper does not say which unit it used
        axes.plot(
            [PAPER_EPSILON],
            [PAPER_SHARE * 100],
            marker="*",
            markersize=10,
            color="white",
            markeredgecolor="black",
            linestyle="none",
            label="paper 1, S = 64: at least 96 % at ε = 3, in one of the two units",
            zorder=5,
        )
        axes.text(one.excess + 0.12, grid[0].get_ylim()[0], f" ε = {one.excess:g}", va="bottom", fontsize="small")
    grid[0].set_ylabel("tokens that are not sinks, %")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if len(digests) == 1 else 1)
    figure.suptitle("Share of tokens that are not sinks against the threshold", x=0.01, ha="left")
    header = ("model", "positions", "unit", "epsilon", "share_not_sinks", "columns")
    return DrawnFigure(
        "figure10-thresholds", titled("Figure 10: tokens that are not sinks against ε", digests), _caption(digests), figure, header, rows
    )


def not_sinks(one: Counted) -> np.ndarray:
    """[unit, ε], shares of all columns that Eq. 3 does not select."""
    return 1 - one.above / max(1, one.columns)


def _caption(digests: Sequence[Counted]) -> str:
    at = int(np.searchsorted(epsilons(), PAPER_EPSILON))
    shares = "; ".join(f"{one.label}: {not_sinks(one)[0, at]:.2%} and {not_sinks(one)[1, at]:.2%}" for one in digests)
    return (
        "Share of the columns of all steps, layers and heads that do not exceed the mean of the others by more than ε: left, column sums "
        f"in queries' worth of attention; right, columns in percent of all attention. At ε = 3: {shares}. What it does not show: the "
        "two units agree only at S = 100; in queries' worth the same ε is a weaker demand the longer the canvas is, so curves of "
        "different S are not comparable on the left, and the paper does not say which unit it used."
    )
