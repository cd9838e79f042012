"""The norms (paper 2, Figure 1): those of sinks beside other tokens', and what both contribute, layer by layer."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sinkscope.counts import counted
from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import BLUE, VERMILLION, WIDE, WIDER, new_sheet, number, plain, say
from sinkscope.figures.subject import FigureError, Subject
from sinkscope.statistics.norms import NORM_KINDS

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
        sheet = new_sheet(WIDER if many else WIDE, 5.2 if not many else 1.0 + 1.75 * len(kinds))
        if many:
            grid = sheet.subplots(len(kinds), len(with_norms), squeeze=False, sharex="col", sharey="row")
        else:
            grid = sheet.subplots(2, 2, squeeze=False).reshape(-1, 1)[: len(kinds)]
        rows: list[tuple[Any, ...]] = []
        for kind, panels in zip(kinds, grid, strict=True):
            means = [
                one.summary.norms.mean[NORM_KINDS.index(kind)] for one in with_norms if kind in recorded_kinds(one)
            ]
            massive = any(np.nanmax(mean) > MASSIVE * np.nanmedian(mean[1]) for mean in means)
            for axes, one in zip(panels, with_norms, strict=True):
                if kind in recorded_kinds(one):
                    rows += _draw(axes, one, kind)
                if kind == kinds[-1] or not many:
                    axes.set_xlabel("layer")
                if many and kind == kinds[0]:
                    axes.set_title(plain(one.heading))
            for axes in panels:
                axes.set_yscale("log", nonpositive="clip") if massive else axes.set_ylim(bottom=0)
            panels[0].set_ylabel(LABELS[kind] + " (log scale)" * massive)
        sheet.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        parts = []
        for one in with_norms:
            if "value" in recorded_kinds(one):
                sinks, others = one.summary.norms.mean[NORM_KINDS.index("value")]
                of = f"of the {counted(int((~np.isnan(sinks)).sum()), 'layer')} that have sinks"
                parts.append(f"{one.label}: sinks have the smaller value norms in {int((sinks < others).sum())} {of}")
        say(sheet, *(parts or (f"{one.label}: norms of sinks and of other tokens" for one in with_norms)))
        caption = (
            "Euclidean norms of values and keys (per head, keys after rotation) and of the hidden state that enters "
            "the layer, for tokens that are sinks by Eq. 3 in a head and for all others, over steps, heads and "
            "positions; bars are standard deviations. Contribution: column sum times value norm, the amount that a "
            "token adds to all queries together. What it does not show: directions."
        )
        header = ("model", "kind", "layer", "tokens", "mean", "standard_deviation", "effect_size")
        return self.drawn(with_norms, sheet, caption, header, rows)


def recorded_kinds(one: Subject) -> list[str]:
    """Return the kinds of norms that were recorded."""
    return [kind for kind, total in zip(NORM_KINDS, one.summary.norms.total, strict=True) if total.any()]


def _draw(axes: Any, one: Subject, kind: str) -> list[tuple[Any, ...]]:
    """Draw means and standard deviations of sinks and others, and return the rows."""
    norms, at = one.summary.norms, NORM_KINDS.index(kind)
    means, spreads, effects = norms.mean[at], norms.deviation[at], norms.effect[at]
    layers = np.arange(means.shape[1])
    looks = ((VERMILLION, "o", "sinks (Eq. 3)", -0.12), (BLUE, "s", "other tokens", 0.12))
    for mean, spread, (colour, marker, name, shift) in zip(means, spreads, looks, strict=True):
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.0, "elinewidth": 0.7}
        axes.errorbar(layers + shift, mean, spread, capsize=2, label=name, **look)
    axes.set_xticks(layers[:: 1 if len(layers) <= 16 else 4])
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
    rows = []
    for layer in layers.tolist():
        for group, name in enumerate(("sinks", "others")):
            values = (means[group, layer], spreads[group, layer], effects[layer])
            rows.append((one.label, kind, layer, name, *("" if np.isnan(value) else number(value) for value in values)))
    return rows
