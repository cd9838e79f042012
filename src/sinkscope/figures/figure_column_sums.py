"""Figures 3, 9 and 10: histograms of column sums, and the share that are no sinks; and norms (paper 2, Figure 1)."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any, final

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.colors import LogNorm

from sinkscope.counts import counted
from sinkscope.figures import style
from sinkscope.figures.figure import OF_LINE, RUNNING_SUMS, DrawnFigure, Figure, Row, of_newest
from sinkscope.figures.subject import FigureError, Subject
from sinkscope.statistics import EPSILONS
from sinkscope.statistics.norms import NORM_KINDS
from sinkscope.statistics.step import BINS_PER_QUERY

MOST_BINS = 100
WIDE_BINS = " Statistics keep columns above 64 in wider bins, whose counts are spread evenly."
UNITS = {"queries": "queries' worth of attention", "percent": "percent of all attention"}
PAPER_EPSILON, PAPER_SHARE = 3.0, 0.96


@final
class ColumnSums(Figure):
    """How many columns have which sum, and which part of them are sinks."""

    name = "3"
    file = "figure3-column-sums"
    title = "Figure 3: column sums of all steps, layers and heads"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        wide = bin_width(subjects)
        sheet = style.new_sheet(style.WIDER if len(subjects) > 1 else style.WIDE, 3.8)
        grid = sheet.subplots(1, len(subjects), squeeze=False, sharex=True, sharey=True)[0]
        rows: list[Row] = []
        end = 0.0
        for axes, one in zip(grid, subjects, strict=True):
            counts = binned(one.quarters.sum(axis=0), wide)
            edges = np.arange(len(counts) + 1) * wide / BINS_PER_QUERY
            axes.stairs(counts, edges, fill=True, color=style.BLUE, alpha=0.85, baseline=0.5)
            axes.set(yscale="log", xlabel="column sum, queries' worth of attention")
            axes.axvline(1, color="black", linestyle=":", linewidth=1)
            sinks, columns, line = one.summary.sinks, one.summary.columns, one.threshold_column_sum
            share = f"{sinks:,} of {columns:,} columns ({sinks / max(1, columns):.2%})"
            if line is None:
                words = f"dotted: one query's worth\n{one.by_rule}, ε = {one.summary.excess:g}, sinks are\n{share}"
            else:
                axes.axvline(line, color=style.VERMILLION, linestyle="--", linewidth=1.2)
                words = f"dotted: an equal share for every token, 1\ndashed: Eq. 3, ε = {one.summary.excess:g}\n"
                words += f"1 + ε(1 − 1/S) = {line:.2f}\nright of it: {share}"
            axes.text(0.98, 0.97, words, transform=axes.transAxes, ha="right", va="top", fontsize="small")
            queries = ", running sum over queries" if one.followed.newest else ""
            axes.set_title(f"{style.plain(one.heading)},\nS = {one.positions_text}{queries}")
            end = max(end, float(edges[-1]))
            bins = zip(map(style.number, edges[:-1]), map(style.number, edges[1:]), counts.tolist(), strict=True)
            rows += [(one.label, *bin, style.number(math.nan if line is None else line)) for bin in bins]
        grid[0].set_ylim(bottom=0.5)
        grid[0].set(xlim=(0, 1.03 * end), ylabel=f"columns in a bin of {wide / BINS_PER_QUERY:g} (log scale)")
        found = ((one, one.summary.sinks / max(1, one.summary.columns)) for one in subjects)
        style.say(sheet, *(f"{one.label}: {share:.2%} of the columns are sinks {one.by_rule}" for one, share in found))
        caption = (
            "A column sum is the attention that one token receives in one head at one step, in queries' worth: 1 where "
            "all tokens get alike. "
            f"{OF_LINE}{of_newest(subjects, f'{RUNNING_SUMS}.')}{WIDE_BINS} What it does not show: which tokens these "
            "are, and that successive steps have nearly the same columns."
        )
        header = ("model", "column_sum_from", "column_sum_to", "columns", "threshold_column_sum")
        return self.drawn(subjects, sheet, caption, header, rows)


def bin_width(subjects: Sequence[Subject]) -> int:
    """Return the width of a bin in quarters of a query's worth, the same for all panels: a hundred bins at most."""
    largest = max(int(np.flatnonzero(one.quarters.sum(axis=0)).max(initial=0)) + 1 for one in subjects)
    widths = (1, 2, 4, 8, 20, 40, 80, 200, 400, largest)
    return next(width for width in widths if math.ceil(largest / width) <= MOST_BINS)


def binned(counts: np.ndarray, wide: int) -> np.ndarray:
    """Return counts […, bin] in bins ``wide`` times as wide, without the empty ones at the end."""
    last = int(np.flatnonzero(counts.reshape(-1, counts.shape[-1]).any(axis=0)).max(initial=0)) + 1
    return np.add.reduceat(counts[..., :last], np.arange(0, last, wide), axis=-1)


@final
class ColumnSumsByLayer(Figure):
    """How many of each layer's columns have which sum."""

    name = "9"
    file = "figure9-column-sums-by-layer"
    title = "Figure 9: column sums by layer"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        wide = bin_width(subjects)
        counts = [binned(one.quarters, wide) for one in subjects]
        shares = [count / count.sum(axis=1, keepdims=True) for count in counts]
        norm = LogNorm(min(float(share[share > 0].min()) for share in shares), 1)
        height = float(np.clip(1.9 + 0.26 * max(map(len, shares)), 3.0, 6.0))
        sheet = style.new_sheet(style.WIDER if len(subjects) > 1 else style.WIDE, height)
        grid = sheet.subplots(1, len(subjects), squeeze=False, sharex=True)[0]
        rows: list[Row] = []
        edges = np.arange(max(share.shape[1] for share in shares) + 1) * wide / BINS_PER_QUERY
        colours = colormaps[style.HEAT].with_extremes(bad="white")
        for axes, one, count, share in zip(grid, subjects, counts, shares, strict=True):
            across, up = edges[: share.shape[1] + 1], np.arange(len(share) + 1) - 0.5
            seen = np.where(share > 0, share, np.nan)
            image = axes.pcolormesh(across, up, seen, cmap=colours, norm=norm, rasterized=True)
            if (line := one.threshold_column_sum) is not None:
                axes.axvline(line, color=style.VERMILLION, linestyle="--", linewidth=1.2)
                label = f" Eq. 3, ε = {one.summary.excess:g}"
                axes.text(line, len(share) - 0.42, label, color=style.VERMILLION, fontsize="small", va="bottom")
            axes.set_title(style.plain(one.heading), pad=14)
            axes.set(xlabel="column sum, queries' worth of attention", xlim=(0, edges[-1]))
            axes.set_yticks(np.arange(0, len(share), 1 if len(share) <= 16 else 4))
            for (layer, at), columns in np.ndenumerate(count):
                rows.append((one.label, layer, style.number(edges[at]), style.number(edges[at + 1]), int(columns)))
        grid[0].set_ylabel("layer")
        label = "share of the layer's columns\n(log scale; white: none)"
        sheet.colorbar(image, ax=list(grid), aspect=25, pad=0.01, label=label)
        means = [np.nan_to_num([np.nanmean([0, *row]) for row in one.summary.mean_strength]) for one in subjects]
        said = "{}: sinks are strongest in layer {} ({:.1f} queries' worth a head)"
        best = ((one.label, mean.argmax(), mean.max()) for one, mean in zip(subjects, means, strict=True))
        style.say(sheet, *(said.format(*one) for one in best))
        caption = (
            "The histogram of Figure 3, one row a layer; layer 0 is next to the embedding. "
            f"{OF_LINE}{of_newest(subjects, f'{RUNNING_SUMS}.')}{WIDE_BINS} What it does not show: which heads and "
            "tokens these are."
        )
        header = ("model", "layer", "column_sum_from", "column_sum_to", "columns")
        return self.drawn(subjects, sheet, caption, header, rows)


@final
class Thresholds(Figure):
    """The share of columns that are no sinks: a curve for each subject in each unit; the paper's point is marked."""

    name = "10"
    file = "figure10-thresholds"
    title = "Figure 10: tokens that are not sinks against ε"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        sheet = style.new_sheet(style.WIDE, 3.3 + 0.3 * len(subjects))
        grid, excess = sheet.subplots(1, 2, sharey=True), subjects[-1].summary.excess
        rows: list[Row] = []
        for at, (axes, (unit, name)) in enumerate(zip(grid, UNITS.items(), strict=True)):
            for one, (colour, marker) in zip(subjects, cycle(style.SERIES), strict=False):
                label, shares = f"{style.plain(one.label)}, S = {one.positions_text}", not_sinks(one)[at]
                looks: dict[str, Any] = {"color": colour, "marker": marker, "markevery": 4, "markersize": 4}
                axes.plot(EPSILONS, shares * 100, linewidth=1.2, label=label, **looks)
                place = (one.label, one.positions, unit)
                pairs = zip(map(style.number, EPSILONS), map(style.number, shares), strict=True)
                rows += [(*place, *pair, one.summary.columns) for pair in pairs]
            axes.axvline(excess, color="black", linestyle=":", linewidth=0.9)
            axes.set(xlabel=f"threshold ε,\n{name}", xlim=(-0.2, 10.2), xticks=range(0, 11, 2))
            axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        lowest = min(float(not_sinks(one).min()) for one in subjects) * 100
        span = max(100 - lowest, 1)
        grid[0].set_ylim(lowest - 0.05 * span, 100 + 0.06 * span)
        for axes in grid:  # in both, because the paper does not say which unit it used
            star: dict[str, Any] = {"markersize": 10, "color": "white", "markeredgecolor": "black", "linestyle": "none"}
            label = "paper 1, S = 64: at least 96 % at ε = 3, in one of the two units"
            axes.plot([PAPER_EPSILON], [PAPER_SHARE * 100], marker="*", label=label, zorder=5, **star)
            axes.text(excess + 0.12, grid[0].get_ylim()[0], f" ε = {excess:g}", va="bottom", fontsize="small")
        grid[0].set_ylabel("tokens that are\nnot sinks, %")
        sheet.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
        at = int(np.searchsorted(EPSILONS, PAPER_EPSILON))
        said = "{}: {:.1%} of the columns are no sinks at ε = 3 (in percent: {:.1%})"
        style.say(sheet, *(said.format(one.label, *not_sinks(one)[:, at]) for one in subjects))
        caption = (
            "Share of the columns of all steps, layers and heads that do not exceed the mean of the other columns "
            "(of a causal model uniform attention) by more than ε. Left: column sums in queries' worth of "
            "attention. Right: columns in percent of all attention. What it does not show: in queries' worth one "
            "ε asks for a smaller share of all attention the longer the canvas is, so curves of different S "
            "cannot be compared on the left."
        )
        header = ("model", "positions", "unit", "epsilon", "share_not_sinks", "columns")
        return self.drawn(subjects, sheet, caption, header, rows)


def not_sinks(one: Subject) -> Float[np.ndarray, "unit epsilon"]:
    """Return the share of all columns that are no sinks, at every ε of the grid."""
    return 1 - one.summary.above.sum(axis=1) / max(1, one.summary.columns)


LABELS = {
    "value": "value norm ‖v‖",
    "key": "key norm ‖k‖",
    "hidden": "hidden norm ‖x‖",
    "contribution": "contribution c·‖v‖",
}

MASSIVE = 20  # times the median of other tokens; on a linear axis nothing else would be seen


@final
class SinkNorms(Figure):
    """Means and standard deviations of each kind of norm in every layer."""

    name = "norms"
    file = "figure-norms"
    title = "Norms of sinks and of other tokens"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        with_norms = [one for one in subjects if recorded_kinds(one)]
        if not with_norms:
            top = any(one.manifest.get("level") == "top" for one in subjects)
            why = "it was recorded with --keep top" if top else "it holds no tensor of them"
            raise FigureError(f"the trace keeps no norms ({why})")
        kinds = [kind for kind in NORM_KINDS if any(kind in recorded_kinds(one) for one in with_norms)]
        many = len(with_norms) > 1
        sheet = style.new_sheet(style.WIDER if many else style.WIDE, 5.2 if not many else 1.0 + 1.75 * len(kinds))
        if many:
            grid = sheet.subplots(len(kinds), len(with_norms), squeeze=False, sharex="col", sharey="row")
        else:
            grid = sheet.subplots(2, 2, squeeze=False).reshape(-1, 1)[: len(kinds)]
        rows: list[Row] = []
        for kind, panels in zip(kinds, grid, strict=True):
            at = NORM_KINDS.index(kind)
            means = [one.summary.norms.mean[at] for one in with_norms if kind in recorded_kinds(one)]
            massive = any(np.nanmax(mean) > MASSIVE * np.nanmedian(mean[1]) for mean in means)
            for axes, one in zip(panels, with_norms, strict=True):
                if kind in recorded_kinds(one):
                    rows += _draw(axes, one, kind)
                if kind == kinds[-1] or not many:
                    axes.set_xlabel("layer")
                if many and kind == kinds[0]:
                    axes.set_title(style.plain(one.heading))
            for axes in panels:
                axes.set_yscale("log", nonpositive="clip") if massive else axes.set_ylim(bottom=0)
            panels[0].set_ylabel(LABELS[kind] + "\n(log scale)" * massive)
        handles, names = grid[0, 0].get_legend_handles_labels()
        sheet.legend(handles, [f"{name}, mean ± SD" for name in names], loc="outside lower center", ncols=2)
        parts = []
        for one in with_norms:
            if "value" in recorded_kinds(one):
                sinks, others = one.summary.norms.mean[NORM_KINDS.index("value")]
                of = f"of the {counted(int((~np.isnan(sinks)).sum()), 'layer')} that have sinks"
                parts.append(f"{one.label}: sinks have the smaller value norms in {int((sinks < others).sum())} {of}")
        style.say(sheet, *(parts or (f"{one.label}: norms of sinks and of other tokens" for one in with_norms)))
        caption = (
            "Euclidean norms of values and keys (per head, keys after rotation) and of the hidden state that enters "
            "the layer, for tokens that are sinks in a head and for all others, over steps, heads and "
            "positions; bars are standard deviations. Contribution: column sum times value norm, the amount that a "
            "token adds to all queries together. What it does not show: directions."
        )
        header = ("model", "kind", "layer", "tokens", "mean", "standard_deviation", "effect_size")
        return self.drawn(with_norms, sheet, caption, header, rows)


def recorded_kinds(one: Subject) -> list[str]:
    """Return the kinds of norms that were recorded."""
    return [kind for kind, total in zip(NORM_KINDS, one.summary.norms.total, strict=True) if total.any()]


def _draw(axes: Any, one: Subject, kind: str) -> list[Row]:
    norms, at = one.summary.norms, NORM_KINDS.index(kind)
    means, spreads, effects = norms.mean[at], norms.deviation[at], norms.effect[at]
    layers = np.arange(means.shape[1])
    looks = ((style.VERMILLION, "o", "sinks", -0.12), (style.BLUE, "s", "other tokens", 0.12))
    for mean, spread, (colour, marker, name, shift) in zip(means, spreads, looks, strict=True):
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.0, "elinewidth": 0.7}
        axes.errorbar(layers + shift, mean, spread, capsize=2, label=name, **look)
    axes.set_xticks(layers[:: 1 if len(layers) <= 16 else 4])
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    rows = []
    for layer in layers.tolist():
        for group, name in enumerate(("sinks", "others")):
            values = (means[group, layer], spreads[group, layer], effects[layer])
            texts = ("" if np.isnan(value) else style.number(value) for value in values)
            rows.append((one.label, kind, layer, name, *texts))
    return rows
