"""Figure 10: the share of tokens that are not sinks, against the threshold ε, in both units."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, final

import numpy as np
from jaxtyping import Float

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, WIDE, new_sheet, number, plain
from sinkscope.figures.subject import Subject
from sinkscope.statistics import EPSILONS

UNITS = {"queries": "queries' worth of attention", "percent": "percent of all attention"}
LOOKS = ((BLUE, "o"), (VERMILLION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (INK, "P"))
PAPER_EPSILON, PAPER_SHARE = 3.0, 0.96


@final
class Thresholds(Figure):
    """One curve for each subject in each unit; the paper's point is marked."""

    name = "10"
    file = "figure10-thresholds"
    title = "Figure 10: tokens that are not sinks against ε"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        sheet = new_sheet(WIDE, 3.6)
        grid, excess = sheet.subplots(1, 2, sharey=True), subjects[-1].summary.excess
        rows: list[tuple[Any, ...]] = []
        for at, (axes, (unit, name)) in enumerate(zip(grid, UNITS.items(), strict=True)):
            for one, (colour, marker) in zip(subjects, cycle(LOOKS), strict=False):
                label, shares = f"{plain(one.label)}, S = {one.positions_text}", not_sinks(one)[at]
                looks: dict[str, Any] = {"color": colour, "marker": marker, "markevery": 4, "markersize": 4}
                axes.plot(EPSILONS, shares * 100, linewidth=1.2, label=label, **looks)
                place = (one.label, one.positions, unit)
                pairs = zip(map(number, EPSILONS), map(number, shares), strict=True)
                rows += [(*place, *pair, one.summary.columns) for pair in pairs]
            axes.axvline(excess, color="black", linestyle=":", linewidth=0.9)
            axes.set_xlabel(f"threshold ε,\n{name}")
            axes.set_xlim(-0.2, 10.2)
            axes.set_xticks(range(0, 11, 2))
            axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        lowest = min(float(not_sinks(one).min()) for one in subjects) * 100
        span = max(100 - lowest, 1)
        grid[0].set_ylim(lowest - 0.05 * span, 100 + 0.06 * span)
        for axes in grid:  # in both, because the paper does not say which unit it used
            star: dict[str, Any] = {"markersize": 10, "color": "white", "markeredgecolor": "black", "linestyle": "none"}
            label = "paper 1, S = 64: at least 96 % at ε = 3, in one of the two units"
            axes.plot([PAPER_EPSILON], [PAPER_SHARE * 100], marker="*", label=label, zorder=5, **star)
            axes.text(excess + 0.12, grid[0].get_ylim()[0], f" ε = {excess:g}", va="bottom", fontsize="small")
        grid[0].set_ylabel("tokens that are not sinks, %")
        sheet.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        sheet.suptitle("Share of tokens that are not sinks against the threshold", x=0.01, ha="left")
        header = ("model", "positions", "unit", "epsilon", "share_not_sinks", "columns")
        return self.drawn(subjects, sheet, _caption(subjects), header, rows)


def not_sinks(one: Subject) -> Float[np.ndarray, "unit epsilon"]:
    """Return the share of all columns that Eq. 3 does not select, at every ε of the grid."""
    return 1 - one.summary.above.sum(axis=1) / max(1, one.summary.columns)


def _caption(subjects: Sequence[Subject]) -> str:
    at = int(np.searchsorted(EPSILONS, PAPER_EPSILON))
    shares = "; ".join(f"{one.label}: {not_sinks(one)[0, at]:.2%} and {not_sinks(one)[1, at]:.2%}" for one in subjects)
    return (
        "Share of the columns of all steps, layers and heads that do not exceed the mean of the other columns by more "
        "than ε. Left: column sums in queries' worth of attention. Right: columns in percent of all attention. At ε = "
        f"3: {shares}. What it does not show: the two units agree only in steps of 100 queries (without a cache, S = "
        "100 tokens). In queries' worth one ε asks for a smaller share of all attention the longer the canvas is, so "
        "curves of different S cannot be compared on the left."
    )
