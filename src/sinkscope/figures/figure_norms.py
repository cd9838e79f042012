"""The norms (paper 2, Figure 1): norms of sinks beside those of other tokens, and what both contribute, layer by layer."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Float

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import BLUE, VERMILLION, WIDE, WIDER, new_sheet, number, plain
from sinkscope.figures.subject import FigureError, Subject

KINDS = {
    "value": "value norm ‖v‖",
    "key": "key norm ‖k‖",
    "hidden": "hidden norm ‖x‖",
    "contribution": "contribution c·‖v‖",
}


@final
class SinkNorms(Figure):
    """Means and standard deviations of each kind of norm in every layer."""

    name = "norms"
    file = "figure-norms"
    title = "Norms of sinks and of other tokens"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw a panel for each kind of norm, a column of them for each subject."""
        with_norms = [one for one in subjects if one.summary.norms]
        if not with_norms:
            raise FigureError("the trace keeps no norms (it was recorded with --keep top)")
        kinds = [kind for kind in KINDS if any(kind in one.summary.norms for one in with_norms)]
        many = len(with_norms) > 1
        sheet = new_sheet(WIDER if many else WIDE, 5.2 if not many else 1.0 + 1.75 * len(kinds))
        if many:
            grid = sheet.subplots(len(kinds), len(with_norms), squeeze=False, sharex="col", sharey="row")
        else:
            grid = sheet.subplots(2, 2, squeeze=False).reshape(-1, 1)[: len(kinds)]
        rows: list[tuple[Any, ...]] = []
        for row, kind in enumerate(kinds):
            for column, one in enumerate(with_norms):
                if kind in one.summary.norms:
                    _draw(grid[row, column], one, kind)
                    rows += _lines(one, kind)
                if column == 0 or not many:
                    grid[row, column].set_ylabel(KINDS[kind])
                if row == len(kinds) - 1 or not many:
                    grid[row, column].set_xlabel("layer")
                if many and row == 0:
                    grid[row, column].set_title(plain(one.heading))
        for kind, panels in zip(kinds, grid, strict=True):
            known = [one.summary.norms[kind] for one in with_norms if kind in one.summary.norms]
            tops = [np.nanmax(moments.sum(axis=0)) for moments in known if not np.isnan(moments).all()]
            for axes in panels:
                axes.set_ylim(0, 1.05 * max(tops, default=1.0))
        handles, labels = grid[0, 0].get_legend_handles_labels()
        sheet.legend(handles, labels, loc="outside lower center", ncols=2)
        name = "" if many else f": {plain(with_norms[0].heading)}"
        sheet.suptitle(f"Norms of sinks and of other tokens by layer{name}", x=0.01, ha="left")
        header = ("model", "kind", "layer", "tokens", "mean", "standard_deviation", "effect_size")
        return self.drawn(with_norms, sheet, _caption(with_norms), header, rows)


def effect_size(moments: Float[np.ndarray, "moment layer group"]) -> Float[np.ndarray, " layer"]:
    """Return the difference of the means over the root mean square of the two standard deviations."""
    (sinks, others), (spread, other_spread) = moments[0].T, moments[1].T
    pooled = np.sqrt((spread**2 + other_spread**2) / 2)
    return np.divide(sinks - others, pooled, out=np.full(len(pooled), np.nan), where=pooled > 0)


def _draw(axes: Any, one: Subject, kind: str) -> None:
    means, spreads = one.summary.norms[kind]
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


def _lines(one: Subject, kind: str) -> list[tuple[Any, ...]]:
    means, spreads = one.summary.norms[kind]
    sizes = effect_size(one.summary.norms[kind])

    def text(value: float) -> str:
        return "" if np.isnan(value) else number(value)

    return [
        (one.label, kind, layer, name, text(means[layer, group]), text(spreads[layer, group]), text(sizes[layer]))
        for layer in range(len(means))
        for group, name in enumerate(("sinks", "others"))
    ]


def _caption(subjects: Sequence[Subject]) -> str:
    parts = []
    for one in subjects:
        if "value" in one.summary.norms:
            means = one.summary.norms["value"][0]
            lower = int((means[:, 0] < means[:, 1]).sum())
            parts.append(f"{one.label}: sinks have the smaller value norms in {lower} of {len(means)} layers")
    return (
        "Euclidean norms of values and keys (per head, keys after rotation) and of the hidden state that enters the layer, for tokens "
        "that are sinks by Eq. 3 in a head and for all others, over steps, heads and positions; bars are standard deviations. "
        "Contribution: column sum times value norm, what a token adds to all queries together; near zero for a sink that does nothing. "
        f"{'; '.join(parts)}. What it does not show: directions. Steps and positions are not independent, so the bars are spreads, not "
        "errors of the means."
    )
