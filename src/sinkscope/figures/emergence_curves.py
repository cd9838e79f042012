"""The figure of sinks being born: what the top keys of all heads take, along one training or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.emergence.history import SHARE, Emergence
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import BLUE, INK, VERMILLION, WIDE, WIDER, figure_style, new_sheet, number, plain

HIDDEN = (
    ("loss_without_top", "the top key of every head", VERMILLION, "--"),
    ("loss_without_rowmass", "random keys that take as much", BLUE, ":"),
)
LOSSES = ("loss", *(name for name, *_ in HIDDEN))
GREY = "#cccccc"
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
        return _draw(runs)


def _draw(runs: Sequence[Emergence]) -> DrawnFigure:
    sheet = new_sheet(WIDER if len(runs) > 1 else WIDE, 8.6)
    grid = sheet.subplots(5, len(runs), sharex="col", sharey="row", squeeze=False)
    for run, column in zip(runs, grid.T, strict=True):
        first = run.updates[1] / 2 if len(run.updates) > 1 else 1  # 0 has no logarithm
        at = [max(update, first) for update in run.updates]
        plain_loss = run.stacked("loss").mean(1)
        column[0].plot(at, plain_loss, color=INK, linewidth=1.3)
        for name, label, colour, line in HIDDEN:
            column[1].plot(at, run.stacked(name).mean(1) - plain_loss, line, color=colour, linewidth=1.3, label=label)
        column[0].set_title(plain(run.name))
        for (name, _), axes in zip(PANELS, column[2:], strict=True):
            _draw_heads(axes, at, getattr(run, name), run.born() >= 0)
        column[2].axhline(SHARE, color=INK, linewidth=0.6, linestyle=":")
        column[-1].set_xscale("log")
        column[-1].set_xlabel(f"update (the first point is update {min(run.updates)})")
    labels = ("held-out loss,\nnats", "cost of hiding,\nnats", *(label for _, label in PANELS))
    for label, axes in zip(labels, grid[:, 0], strict=True):
        axes.set_ylabel(label)
    grid[1, 0].legend(loc="upper left")
    handles = {label: line for axes in grid[2] for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    sheet.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    sheet.suptitle(_message(runs), x=0.01, ha="left")
    title = f"Sinks being born ({', '.join(run.name for run in runs)})"
    return DrawnFigure(FILE, title, _caption(runs), sheet, HEADER, _rows(runs))


def _draw_heads(axes: Any, at: Sequence[float], by_head: np.ndarray, born: np.ndarray) -> None:
    """Draw a line for each head: in the colour of its layer where a sink was born, else in grey."""
    from matplotlib import colormaps

    layers, heads = born.shape
    for layer, head in sorted(np.ndindex(layers, heads), key=lambda place: bool(born[place])):
        colour = colormaps["viridis"](layer / max(1, layers - 1) * 0.9) if born[layer, head] else GREY
        label = f"layer {layer}" if born[layer, head] else "heads without a sink"
        axes.plot(at, by_head[:, layer, head], color=colour, linewidth=1.0 if born[layer, head] else 0.6, label=label)


def _message(runs: Sequence[Emergence]) -> str:
    lines = []
    for run in runs:
        born, name = run.born(), f"{plain(run.name)}: " if len(runs) > 1 else ""
        there = born[born >= 0]
        when = f"; the first does from update {there.min():,} on" if there.size else ""
        lines.append(
            f"{name}{there.size} of {born.size} heads give one key {SHARE:.0%} of their attention or more{when}"
        )
    return "\n".join(lines)


def _caption(runs: Sequence[Emergence]) -> str:
    return (
        "Top: held-out loss, and how much it rises while keys are hidden from the judged queries in all heads. Below, "
        "a line for each head: the share of the judged queries' attention that its top key takes (the key with the "
        "largest column on a canvas; mean over canvases); the value norm of that key over the median of its canvas "
        "(median over canvases); the share of canvases on which the top key stands where it stood at the moment "
        "before. Judged are the masked queries of a diffusion model and those from the 64th on of an autoregressive "
        f"one, on {runs[0].manifest['canvases']} canvases. What it does not show: other seeds; hiding in all heads at "
        "once says nothing of a single head."
    )


def _rows(runs: Sequence[Emergence]) -> list[tuple[Any, ...]]:
    rows = []
    for run in runs:
        losses = [run.stacked(name).mean(1) for name in LOSSES]
        curves = [getattr(run, name) for name, _ in PANELS]
        for moment, update in enumerate(run.updates):
            for layer, head in np.ndindex(curves[0].shape[1:]):
                values = [curve[moment, layer, head] for curve in curves] + [loss[moment] for loss in losses]
                rows.append((run.name, update, layer, head, *(number(float(value)) for value in values)))
    return rows
