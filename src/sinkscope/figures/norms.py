"""Paper 2's Figure 1: norms of sinks beside those of other tokens, and what both contribute, layer by layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.counts import Counted
from sinkscope.figures.digest import titled
from sinkscope.figures.figure import BLUE, VERMILLION, WIDE, WIDER, DrawnFigure, new_figure, number, plain

KINDS = {
    "value": "value norm ‖v‖",
    "key": "key norm ‖k‖",
    "hidden": "hidden norm ‖x‖",
    "contribution": "contribution c·‖v‖",
}


def sink_norms(digests: Sequence[Counted]) -> DrawnFigure | str:
    """Draws the norm figure, a row of panels for each kind; a reason where no trace has norms."""
    with_norms = [one for one in digests if one.norms]
    if not with_norms:
        return "the norms of sinks: the trace keeps no norms (it was recorded with keep = top)"
    kinds = [kind for kind in KINDS if any(kind in one.norms for one in with_norms)]
    many = len(with_norms) > 1
    figure = new_figure(WIDER if many else WIDE, 5.2 if not many else 1.0 + 1.75 * len(kinds))
    if many:
        grid = figure.subplots(len(kinds), len(with_norms), squeeze=False, sharex="col", sharey="row")
    else:
        grid = figure.subplots(2, 2, squeeze=False).reshape(-1, 1)[: len(kinds)]
    rows: list[tuple[Any, ...]] = []
    for row, kind in enumerate(kinds):
        for column, one in enumerate(with_norms):
            if kind in one.norms:
                _draw(grid[row, column], one, kind)
                rows += _lines(one, kind)
            if column == 0 or not many:
                grid[row, column].set_ylabel(KINDS[kind])
            if row == len(kinds) - 1 or not many:
                grid[row, column].set_xlabel("layer")
            if many and row == 0:
                grid[row, column].set_title(plain(one.heading))
    for kind, panels in zip(kinds, grid, strict=True):
        tops = [np.nanmax(one.norms[kind].sum(axis=0)) for one in with_norms if kind in one.norms and not np.isnan(one.norms[kind]).all()]
        for axes in panels:
            axes.set_ylim(0, 1.05 * max(tops, default=1.0))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    name = "" if many else f": {plain(with_norms[0].heading)}"
    figure.suptitle(f"Norms of sinks and of other tokens by layer{name}", x=0.01, ha="left")
    header = ("model", "kind", "layer", "tokens", "mean", "standard_deviation", "effect_size")
    return DrawnFigure("figure-norms", titled("Norms of sinks and of other tokens", with_norms), _caption(with_norms), figure, header, rows)


def effect_size(moments: np.ndarray) -> np.ndarray:
    """[moment, layer, group] → [layer], difference of the means over the root mean square of the two standard deviations."""
    (sinks, others), (spread, other_spread) = moments[0].T, moments[1].T
    pooled = np.sqrt((spread**2 + other_spread**2) / 2)
    return np.divide(sinks - others, pooled, out=np.full(len(pooled), np.nan), where=pooled > 0)


def _draw(axes: Any, one: Counted, kind: str) -> None:
    means, spreads = one.norms[kind]
    layers = np.arange(len(means))
    looks = ((VERMILLION, "o", "sinks (Eq. 3)", -0.12), (BLUE, "s", "other tokens", 0.12))
    for group, (colour, marker, label, shift) in enumerate(looks):
        axes.errorbar(
            layers + shift,
            means[:, group],
            yerr=spreads[:, group],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.0,
            elinewidth=0.7,
            capsize=2,
            label=f"{label}: mean ± standard deviation",
        )
    axes.set_xticks(layers[:: 1 if len(layers) <= 16 else 4])
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)


def _lines(one: Counted, kind: str) -> list[tuple[Any, ...]]:
    means, spreads = one.norms[kind]
    sizes = effect_size(one.norms[kind])

    def shown(value: float) -> str:
        return "" if np.isnan(value) else number(value)

    return [
        (one.label, kind, layer, name, shown(means[layer, group]), shown(spreads[layer, group]), shown(sizes[layer]))
        for layer in range(len(means))
        for group, name in enumerate(("sinks", "others"))
    ]


def _caption(digests: Sequence[Counted]) -> str:
    parts = []
    for one in digests:
        if "value" in one.norms:
            means = one.norms["value"][0]
            lower = int((means[:, 0] < means[:, 1]).sum())
            parts.append(f"{one.label}: value norms of sinks are lower in {lower} of {len(means)} layers")
    return (
        "Euclidean norms of values and keys (per head, keys after rotation) and of what enters the layer, for tokens that are sinks by "
        "Eq. 3 in a head and for all others, over steps, heads and positions; bars are standard deviations. Contribution: column sum times "
        "value norm, what a token adds to all queries together; near-zero for a sink that is a no-op. "
        f"{'; '.join(parts)}. What it does not show: directions. Steps and positions are anything but independent, so the bars are "
        "spreads, not errors of the means."
    )
