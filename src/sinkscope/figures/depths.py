"""Figure 9: column sums by depth: one histogram a layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.counts import BINS_PER_QUERY, Counted, spread_note
from sinkscope.figures.digest import titled
from sinkscope.figures.figure import HEAT, VERMILLION, WIDE, WIDER, DrawnFigure, new_figure, number, plain
from sinkscope.figures.histogram import bin_width


def column_sums_by_layer(digests: Sequence[Counted]) -> DrawnFigure:
    """Draws Figure 9; with several traces side by side, on one colour scale and the same bins."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    wide, many = bin_width(digests), len(digests) > 1
    shares = [_shares(one, wide) for one in digests]
    least = min(float(share[share > 0].min()) for share in shares)
    layers = max(len(share) for share in shares)
    figure = new_figure(WIDER if many else WIDE, float(np.clip(1.9 + 0.26 * layers, 3.0, 6.0)))
    grid = figure.subplots(1, len(digests), squeeze=False, sharex=True)[0]
    rows: list[tuple[Any, ...]] = []
    end = max(share.shape[1] for share in shares) * wide / BINS_PER_QUERY
    for axes, one, share in zip(grid, digests, shares, strict=True):
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
        axes.axvline(one.threshold, color=VERMILLION, linestyle="--", linewidth=1.2)
        axes.text(one.threshold, len(share) - 0.42, f" Eq. 3, ε = {one.excess:g}", color=VERMILLION, fontsize="small", va="bottom")
        axes.set_title(plain(one.heading), pad=14)
        axes.set_xlabel("column sum, queries' worth of attention")
        axes.set_xlim(0, end)
        axes.set_yticks(np.arange(0, len(share), 1 if len(share) <= 16 else 4))
        rows += [
            (one.label, layer, number(edges[at]), number(edges[at + 1]), int(count))
            for layer, counts in enumerate(_binned(one, wide))
            for at, count in enumerate(counts)
        ]
    grid[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(grid), aspect=25, pad=0.01).set_label("share of the layer's columns\n(log scale; white: none)")
    figure.suptitle("Column sums by layer, over all steps and heads", x=0.01, ha="left")
    header = ("model", "layer", "column_sum_from", "column_sum_to", "columns")
    return DrawnFigure(
        "figure9-column-sums-by-layer", titled("Figure 9: column sums by layer", digests), _caption(digests), figure, header, rows
    )


def _binned(one: Counted, wide: int) -> np.ndarray:
    filled = one.layer_counts[:, : int(np.flatnonzero(one.counts).max(initial=0)) + 1]
    return np.pad(filled, ((0, 0), (0, -filled.shape[1] % wide))).reshape(len(filled), -1, wide).sum(axis=-1)


def _shares(one: Counted, wide: int) -> np.ndarray:
    counts = _binned(one, wide)
    return counts / counts.sum(axis=1, keepdims=True)


def _caption(digests: Sequence[Counted]) -> str:
    causal = (
        " For the autoregressive model these are running sums, which favour early tokens." if any(one.causal for one in digests) else ""
    )
    return (
        "The histogram of Figure 3, a row for each layer (layer 0 is next to the embedding): how many of a layer's columns have which sum. "
        "Right of the dashed line a column is a sink by Eq. 3. A layer with few, strong sinks has a gap between the mass on the left and "
        f"single bins far to the right.{causal}{spread_note(digests)} "
        "What it does not show: which heads and tokens they are, and how many steps they last."
    )
