"""The figure of sinks being born: what the main keys of all heads take, along one training or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.emergence.records import SHARE, Emergence
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import BLUE, INK, VERMILLION, WIDE, WIDER, figure_style, new_sheet, number, plain

LOSSES = (
    ("loss", "as it is", INK, "-"),
    ("loss_without_top", "main key of every head hidden", VERMILLION, "--"),
    ("loss_without_rowmass", "random keys hidden that take as much", BLUE, ":"),
)
PANELS = (
    ("shares", "attention on the\nmain key"),
    ("ratios", "its value norm\nover the median"),
    ("stayed", "canvases where it\nstays in its place"),
)
TITLE = "Sinks being born"
HEADER = ("model", "update", "layer", "head", "share", "value_ratio", "stayed", "loss", "loss_without_top", "loss_without_rowmass")


def draw_emergence(runs: Sequence[Emergence]) -> DrawnFigure:
    """Draw the runs side by side, one column each, on common scales."""
    with figure_style(wide=len(runs) > 1):
        return _draw(runs)


def _draw(runs: Sequence[Emergence]) -> DrawnFigure:
    from matplotlib import colormaps

    sheet = new_sheet(WIDER if len(runs) > 1 else WIDE, 7.4)
    grid = sheet.subplots(4, len(runs), sharex="col", sharey="row", squeeze=False)
    for run, column in zip(runs, grid.T, strict=True):
        at = [max(update, run.updates[1] / 2 if len(run.updates) > 1 else 1) for update in run.updates]  # 0 has no logarithm
        for name, label, colour, line in LOSSES:
            column[0].plot(at, run.stacked(name).mean(1), line, color=colour, linewidth=1.3, label=label)
        column[0].set_title(plain(run.name))
        layers = run.manifest["layers"]
        for (name, _), axes in zip(PANELS, column[1:], strict=True):
            by_head = getattr(run, name)
            for layer in range(layers):
                colour = colormaps["viridis"](layer / max(1, layers - 1) * 0.9)
                for head, line in enumerate(by_head[:, layer].T):
                    axes.plot(at, line, color=colour, linewidth=0.8, alpha=0.8, label=f"layer {layer}" if head == 0 else None)
        column[1].axhline(SHARE, color=INK, linewidth=0.6, linestyle=":")
        column[-1].set_xscale("log")
        column[-1].set_xlabel(f"update (the first point is update {run.updates[0]})")
    grid[0, 0].set_ylabel("held-out loss,\nnats")
    for (_, label), axes in zip(PANELS, grid[1:, 0], strict=True):
        axes.set_ylabel(label)
    grid[0, -1].legend(loc="upper right")
    grid[1, 0].legend(loc="upper left", ncols=2)
    sheet.suptitle(_message(runs), x=0.01, ha="left")
    return DrawnFigure("emergence", f"{TITLE} ({', '.join(run.name for run in runs)})", _caption(runs), sheet, HEADER, _rows(runs))


def _message(runs: Sequence[Emergence]) -> str:
    """Return one line with what the curves show."""
    lines = []
    for run in runs:
        born = run.born()
        there = born[born >= 0]
        when = f", the first from update {there.min():,} on" if there.size else ""
        lines.append(f"{plain(run.name)}: in {there.size} of {born.size} heads one key takes {SHARE:.0%} or more{when}")
    return "\n".join(lines)


def _caption(runs: Sequence[Emergence]) -> str:
    return (
        "Top: held-out loss. Below, a line for each head: the share of the judged queries' attention that its main key takes (the key "
        "with the largest column on a canvas; mean over canvases); the value norm of that key over the median of its canvas (median over "
        "canvases); the share of canvases on which the main key stands where it stood at the moment before. Judged are the masked queries "
        f"of a diffusion model and those from the 64th on of an autoregressive one, on {runs[0].manifest['canvases']} canvases. "
        "What it does not show: other seeds; hiding in all heads at once says nothing of a single head."
    )


def _rows(runs: Sequence[Emergence]) -> list[tuple[Any, ...]]:
    rows = []
    for run in runs:
        losses = [run.stacked(name).mean(1) for name, *_ in LOSSES]
        curves = [getattr(run, name) for name, _ in PANELS]
        for moment, update in enumerate(run.updates):
            for layer, head in np.ndindex(curves[0].shape[1:]):
                values = [curve[moment, layer, head] for curve in curves] + [loss[moment] for loss in losses]
                rows.append((run.name, update, layer, head, *(number(float(value)) for value in values)))
    return rows
