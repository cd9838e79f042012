"""Figure 5: where in the network sinks are strong: layer × head, column sum of the main sink, mean over steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.counts import Counted
from sinkscope.figures.digest import titled
from sinkscope.figures.figure import HEAT, WIDE, WIDER, DrawnFigure, new_figure, number, plain

MOST_CELLS_WITH_NUMBERS = 200


def sink_strengths(digests: Sequence[Counted]) -> DrawnFigure:
    """Draws Figure 5; with several traces side by side, on one colour scale."""
    many = len(digests) > 1
    means = [one.mean_strength for one in digests]
    most = max((float(np.nanmax(mean)) for mean in means if not np.isnan(mean).all()), default=1.0)
    layers = max(mean.shape[0] for mean in means)
    figure = new_figure(WIDER if many else WIDE * 0.75, float(np.clip(1.8 + 0.38 * layers, 3.2, 6.6)))
    grid = figure.subplots(1, len(digests), squeeze=False)[0]
    rows: list[tuple[Any, ...]] = []
    for axes, one, mean in zip(grid, digests, means, strict=True):
        steps = one.sink_steps
        image = _draw(axes, one, mean, steps / one.steps, most)
        rows += [
            (one.label, layer, head, "" if np.isnan(mean[layer, head]) else number(mean[layer, head]), int(steps[layer, head]), one.steps)
            for layer, head in np.ndindex(mean.shape)
        ]
    figure.colorbar(image, ax=list(grid), aspect=25, pad=0.01).set_label("column sum of the main sink,\nqueries' worth of attention")
    grid[0].set_ylabel("layer")
    if any(((one.sink_steps > 0) & (one.sink_steps < 0.5 * one.steps)).any() for one in digests):
        figure.supxlabel("hatched: a sink in fewer than half of the steps; –: in none", fontsize="small")
    figure.suptitle("Strength of the main sink by layer and head, mean over steps", x=0.01, ha="left")
    header = ("model", "layer", "head", "mean_main_sink_column_sum", "steps_with_main_sink", "steps")
    return DrawnFigure(
        "figure5-main-sink-strength",
        titled("Figure 5: strength of the main sink by layer and head", digests),
        _caption(digests),
        figure,
        header,
        rows,
    )


def _draw(axes: Any, one: Counted, mean: np.ndarray, share: np.ndarray, most: float) -> Any:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps[HEAT].with_extremes(bad="#e8e8e8")
    image = axes.imshow(mean, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=most)
    write = mean.size <= MOST_CELLS_WITH_NUMBERS
    for layer, head in np.ndindex(mean.shape):
        strength, box = mean[layer, head], None
        if 0 < share[layer, head] < 0.5:
            axes.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#b0b0b0", linewidth=0))
            box = {"facecolor": colours(strength / most), "edgecolor": "none", "pad": 0.8}
        if write:
            dark = not np.isnan(strength) and strength < 0.6 * most
            text = "–" if np.isnan(strength) else f"{strength:.1f}"
            axes.text(head, layer, text, ha="center", va="center", color="white" if dark else "black", fontsize="small", bbox=box)
    axes.spines[:].set_visible(False)
    axes.set_xticks(_ticks(mean.shape[1]))
    axes.set_yticks(_ticks(mean.shape[0]))
    axes.set_xlabel("head")
    queries = "running sums over all queries" if one.causal else "sums over all queries"
    axes.set_title(f"{plain(one.heading)},\n{one.steps} steps, {queries}")
    return image


def _ticks(count: int) -> np.ndarray:
    return np.arange(0, count, 1 if count <= 16 else 4)


def _caption(digests: Sequence[Counted]) -> str:
    parts = []
    for one in digests:
        found = one.sink_steps > 0
        parts.append(f"{one.label}: {int(found.sum())} of {found.size} heads have one in some step")
    causal = (
        " For the autoregressive model these are running sums over all queries so far, which favour early tokens: they were seen by "
        "more queries."
        if any(one.causal for one in digests)
        else ""
    )
    return (
        "Column sum of the main sink (the largest column where Eq. 3 holds), averaged over the steps in which the head has one; layer 0 "
        "is next to the embedding. Hatched: heads that have one in fewer than half of the steps; grey with a dash: in none. "
        f"{'; '.join(parts)}.{causal} What it does not show: the other sinks of a head, and whether the main sink is the same "
        "token throughout."
    )
