"""The figure of sinks being born: what the top keys of all heads take, along one training or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.emergence.history import SHARE, Emergence
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import BLUE, INK, VERMILLION, WIDE, WIDER, figure_style, new_sheet, number, plain, say

HIDDEN = (
    ("loss_without_top", "the top key of every head", VERMILLION, "--"),
    ("loss_without_rowmass", "random keys that take as much", BLUE, ":"),
)
LOSSES = ("loss", *(name for name, *_ in HIDDEN))
PANELS = (
    ("shares", "attention on the\ntop key"),
    ("ratios", "its value norm\nover the median"),
    ("stayed", "canvases where it\nstays in its place"),
)
FILE = "emergence"
HEADER = ("model", "update", "layer", "head", "share", "value_ratio", "stayed", *LOSSES)


def draw_emergence(runs: Sequence[Emergence]) -> DrawnFigure:
    """Draw the runs side by side, one column each, on common scales."""
    with figure_style(wide=len(runs) > 1):
        sheet = new_sheet(WIDER if len(runs) > 1 else WIDE, 8.6)
        grid = sheet.subplots(5, len(runs), sharex="col", sharey="row", squeeze=False)
        rows: list[tuple[Any, ...]] = []
        for run, column in zip(runs, grid.T, strict=True):
            rows += _draw_run(run, column)
        labels = ("held-out loss,\nnats", "cost of hiding,\nnats", *(label for _, label in PANELS))
        for label, axes in zip(labels, grid[:, 0], strict=True):
            axes.set_ylabel(label)
        grid[1, 0].legend(loc="upper left")
        handles = {
            label: line for axes in grid[2] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        sheet.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
        message = []
        for run in runs:
            there = (born := run.born())[born >= 0]
            when = f"; the first does from update {there.min():,} on" if there.size else ""
            given = f"heads give one key {SHARE:.0%} of their attention or more{when}"
            message.append(f"{run.name}: {there.size} of {born.size} {given}")
        say(sheet, *message)
    caption = (
        "Top: held-out loss, and how much it rises while keys are hidden from the judged queries in all heads. Below, "
        "a line for each head: the share of the judged queries' attention that its top key takes; the value norm of "
        "that key over the median of its canvas; the share of canvases on which it stands where it stood at the moment "
        "before. Judged are the masked queries of a diffusion model and those from the 64th on of an autoregressive "
        f"one, on {runs[0].manifest['canvases']} canvases. What it does not show: other seeds, and single heads."
    )
    title = f"Sinks being born ({', '.join(run.name for run in runs)})"
    return DrawnFigure(FILE, title, caption, sheet, HEADER, rows)


def _draw_run(run: Emergence, panels: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Draw one run and return its rows."""
    from matplotlib import colormaps

    first = run.updates[1] / 2 if len(run.updates) > 1 else 1  # 0 has no logarithm
    at = [max(update, first) for update in run.updates]
    losses = [run.stacked(name).mean(1) for name in LOSSES]
    curves = [getattr(run, name) for name, _ in PANELS]
    panels[0].plot(at, losses[0], color=INK, linewidth=1.3)
    for (_, label, colour, line), loss in zip(HIDDEN, losses[1:], strict=True):
        panels[1].plot(at, loss - losses[0], line, color=colour, linewidth=1.3, label=label)
    panels[0].set_title(plain(run.name))
    born = run.born() >= 0
    layers, heads = born.shape
    for curve, axes in zip(curves, panels[2:], strict=True):
        for layer, head in sorted(np.ndindex(layers, heads), key=lambda place: bool(born[place])):
            look: dict[str, Any] = {"color": "#cccccc", "linewidth": 0.6, "label": "heads without a sink"}
            if born[layer, head]:
                colour = colormaps["viridis"](layer / max(1, layers - 1) * 0.9)
                few = -(-layers // 8)  # more names would cover each other
                look = {"color": colour, "linewidth": 1.0, "label": "_" * bool(layer % few) + f"layer {layer}"}
            axes.plot(at, curve[:, layer, head], **look)
    panels[2].axhline(SHARE, color=INK, linewidth=0.6, linestyle=":")
    panels[-1].set_xscale("log")
    panels[-1].set_xlabel(f"update (the first point is update {min(run.updates)})")
    return [
        (
            run.name,
            update,
            *head,
            *map(number, [*(curve[(at, *head)] for curve in curves), *(loss[at] for loss in losses)]),
        )
        for at, update in enumerate(run.updates)
        for head in np.ndindex(layers, heads)
    ]
