"""Figure 5: where sinks are strong: the main sink's column sum in each layer and head, mean over steps."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from sinkscope.counts import counted
from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import HEAT, WIDE, WIDER, new_sheet, number, plain, say
from sinkscope.figures.subject import RUNNING_SUMS, Subject, of_newest

MOST_CELLS_WITH_NUMBERS = 200


@final
class SinkStrengths(Figure):
    """Layer × head, mean over the steps that have a sink."""

    name = "5"
    file = "figure5-main-sink-strength"
    title = "Figure 5: strength of the main sink by layer and head"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        many = len(subjects) > 1
        most = strongest([one.summary.mean_strength for one in subjects])
        layers = max(one.summary.layers for one in subjects)
        sheet = new_sheet(WIDER if many else WIDE * 0.8, float(np.clip(1.8 + 0.38 * layers, 3.2, 6.6)))
        grid = sheet.subplots(1, len(subjects), squeeze=False)[0]
        rows: list[tuple[Any, ...]] = []
        for axes, one in zip(grid, subjects, strict=True):
            image = draw_strengths(axes, one, most)
            for (layer, head), count in np.ndenumerate(one.summary.steps_with_sink):
                mean = one.summary.mean_strength[layer, head]
                rows.append((one.label, layer, head, number(mean) if count else "", int(count), one.summary.steps))
        bar = sheet.colorbar(image, ax=list(grid), aspect=25, pad=0.01)
        bar.set_label("column sum of the main sink,\nqueries' worth of attention")
        grid[0].set_ylabel("layer")
        shares = np.concatenate([one.summary.steps_with_sink.ravel() / one.summary.steps for one in subjects])
        signs = ["hatched: a sink in fewer than half of the steps"] * bool(((shares > 0) & (shares < 0.5)).any())
        if signs := [*signs, *["grey: a sink in no step"] * bool((shares == 0).any())]:
            sheet.supxlabel("; ".join(signs), fontsize="small")
        parts = []
        for one in subjects:
            found = one.summary.steps_with_sink / one.summary.steps
            some = f"{(found > 0).sum()} of {found.size} heads have a sink in some step"
            parts.append(f"{one.label}: {some}, {(found >= 0.5).sum()} in half of the steps or more")
        say(sheet, *parts)
        caption = (
            "Column sum of the main sink (the head's strongest token, where Eq. 3 holds), averaged over the steps in "
            f"which the head has one; layer 0 is next to the embedding.{of_newest(subjects, f'{RUNNING_SUMS}.')} What "
            "it does not show: the other sinks of a head, and whether the main sink is the same token throughout."
        )
        header = ("model", "layer", "head", "mean_main_sink_column_sum", "steps_with_main_sink", "steps")
        return self.drawn(subjects, sheet, caption, header, rows)


def strongest(means: Sequence[np.ndarray]) -> float:
    """Return the end of the colour scale: the largest mean; 1 where there is none."""
    return max((float(np.nanmax(mean)) for mean in means if not np.isnan(mean).all()), default=1.0)


def draw_strengths(axes: Any, one: Subject, most: float) -> Any:
    """Draw layer × head, hatched where a head has a sink in few steps, and return the image."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    mean, share = one.summary.mean_strength, one.summary.steps_with_sink / one.summary.steps
    colours = colormaps[HEAT].with_extremes(bad="#e8e8e8")
    image = axes.imshow(mean, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=most)
    for (layer, head), strength in np.ndenumerate(mean):
        box, place = None, (head - 0.5, layer - 0.5)
        if 0 < share[layer, head] < 0.5:
            axes.add_patch(Rectangle(place, 1, 1, fill=False, hatch="////", edgecolor="#b0b0b0", linewidth=0))
            box = {"facecolor": colours(strength / most), "edgecolor": "none", "pad": 0.8}
        if mean.size <= MOST_CELLS_WITH_NUMBERS:
            look = {"color": "white" if strength < 0.6 * most else "black", "fontsize": "small", "bbox": box}
            axes.text(head, layer, "" if np.isnan(strength) else f"{strength:.1f}", ha="center", va="center", **look)
    axes.spines[:].set_visible(False)
    for axis, count in ((axes.yaxis, mean.shape[0]), (axes.xaxis, mean.shape[1])):
        axis.set_ticks(range(0, count, 1 if count <= 16 else 4))
    axes.set_xlabel("head")
    queries = "running sums over all queries" if one.followed.newest else "sums over all queries"
    axes.set_title(f"{plain(one.heading)},\n{counted(one.summary.steps, 'step')}, {queries}")
    return image
