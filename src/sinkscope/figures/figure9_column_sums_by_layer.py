"""Figure 9: column sums by depth: the histogram of Figure 3, one row a layer."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.figure3_column_sums import bin_width, binned, wide_bins_note
from sinkscope.figures.style import HEAT, VERMILLION, WIDE, WIDER, new_sheet, number, plain
from sinkscope.figures.subject import Subject, of_line, of_running_sums
from sinkscope.statistics.step import BINS_PER_QUERY


@final
class ColumnSumsByLayer(Figure):
    """How many of each layer's columns have which sum."""

    name = "9"
    file = "figure9-column-sums-by-layer"
    title = "Figure 9: column sums by layer"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw layer against column sum for each subject, on one colour scale and the same bins."""
        from matplotlib import colormaps
        from matplotlib.colors import LogNorm

        wide, many = bin_width(subjects), len(subjects) > 1
        counts = [binned(one.quarters, wide) for one in subjects]
        shares = [count / count.sum(axis=1, keepdims=True) for count in counts]
        least = min(float(share[share > 0].min()) for share in shares)
        layers = max(len(share) for share in shares)
        sheet = new_sheet(WIDER if many else WIDE, float(np.clip(1.9 + 0.26 * layers, 3.0, 6.0)))
        grid = sheet.subplots(1, len(subjects), squeeze=False, sharex=True)[0]
        rows: list[tuple[Any, ...]] = []
        end = max(share.shape[1] for share in shares) * wide / BINS_PER_QUERY
        for axes, one, count, share in zip(grid, subjects, counts, shares, strict=True):
            edges = np.arange(share.shape[1] + 1) * wide / BINS_PER_QUERY
            colours = colormaps[HEAT].with_extremes(bad="white")
            image = axes.pcolormesh(
                edges,
                np.arange(len(share) + 1) - 0.5,
                np.where(share > 0, share, np.nan),
                cmap=colours,
                norm=LogNorm(least, 1),
                rasterized=True,
            )
            if (line := one.threshold_column_sum) is not None:
                axes.axvline(line, color=VERMILLION, linestyle="--", linewidth=1.2)
                label = f" Eq. 3, ε = {one.summary.excess:g}"
                axes.text(line, len(share) - 0.42, label, color=VERMILLION, fontsize="small", va="bottom")
            axes.set_title(plain(one.heading), pad=14)
            axes.set_xlabel("column sum, queries' worth of attention")
            axes.set_xlim(0, end)
            axes.set_yticks(np.arange(0, len(share), 1 if len(share) <= 16 else 4))
            rows += [
                (one.label, layer, number(edges[at]), number(edges[at + 1]), int(columns))
                for (layer, at), columns in np.ndenumerate(count)
            ]
        grid[0].set_ylabel("layer")
        sheet.colorbar(image, ax=list(grid), aspect=25, pad=0.01).set_label(
            "share of the layer's columns\n(log scale; white: none)"
        )
        sheet.suptitle("Column sums by layer, over all steps and heads", x=0.01, ha="left")
        header = ("model", "layer", "column_sum_from", "column_sum_to", "columns")
        return self.drawn(subjects, sheet, _caption(subjects), header, rows)


def _caption(subjects: Sequence[Subject]) -> str:
    newest = of_running_sums(subjects, ", which favour early tokens")
    return (
        f"The histogram of Figure 3, one row a layer; layer 0 is next to the embedding. {of_line(subjects)} "
        "A layer with few, strong sinks has a gap between the mass on the left and single bins far to the "
        f"right.{newest}{wide_bins_note(subjects)} What it does not show: which heads and tokens these are, and how many steps they last."
    )
