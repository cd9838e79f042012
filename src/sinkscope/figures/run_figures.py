"""Figures of runs: accuracy against multiply-adds, drift of keys and values, and sinks being born in trainings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps

from sinkscope.counts import counted
from sinkscope.emergence.history import SHARE, Emergence
from sinkscope.figures import style
from sinkscope.figures.figure import DrawnFigure, Row

WORK = "task policy n accuracy low high difference difference_low difference_high multiply_adds work_ratio"
SIDE_BY_SIDE = 3
DRIFT_HEADER = ("measure", "lag", "class", "layer", "mean", "low", "high")
LOOKS = {
    "new": (style.VERMILLION, "s"),
    "sink": (style.ORANGE, "D"),
    "mask": (style.BLUE, "o"),
    "text": (style.GREEN, "^"),
}
MEASURES = {
    "key_cosine": "1 − cosine of keys",
    "value_cosine": "1 − cosine of values",
    "key_norm": "change of key norms",
    "value_norm": "change of value norms",
}


def draw_accuracy_and_work(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw the rows of ``caches.json``, a panel for each task; points are numbered as in the legend below."""
    tasks = list(dict.fromkeys(row["task"] for row in document["rows"]))
    names = list(dict.fromkeys(row["policy"] for row in document["rows"]))
    across, down = min(len(tasks), SIDE_BY_SIDE), -(-len(tasks) // SIDE_BY_SIDE)
    wide, columns = len(tasks) > 1, 3 if len(tasks) > 1 else 2
    with style.figure_style(wide=wide):
        height = 3.2 * down + 0.17 * -(-len(names) // columns) + 0.5
        sheet = style.new_sheet(style.WIDER if wide else style.WIDE, height)
        grid = sheet.subplots(down, across, squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            _draw_task(axes, [row for row in document["rows"] if row["task"] == task], names)
            axes.set_title(style.plain(task))
        for axes in list(grid.flat)[len(tasks) :]:
            axes.set_axis_off()
        first_rows = {row["policy"]: row for row in reversed(document["rows"])}
        handles = [_mark(grid.flat[0], first_rows[name], [], []) for name in names]
        labels = [f"{at} {'plain sampling' if name == 'none' else style.plain(name)}" for at, name in enumerate(names)]
        sheet.legend(handles, labels, loc="outside lower center", ncols=columns)
    n = {row["task"]: counted(row["n"], "problem") for row in reversed(document["rows"])}
    caption = (
        f"Accuracy of {document['model']['name']} against the multiply-adds of an answer, both axes measured: "
        + "; ".join(f"{task}, {n[task]}" for task in tasks)
        + ". Bars are Wilson's 95 % intervals over problems, the dashed line is plain sampling. Policies to the left "
        "do less work. Filled: all steps commit a fixed number of tokens; hollow: parallel decoding. Squares read a "
        "budget of the stored keys. What it does not show: differences paired by problem, whose "
        "intervals are narrower; they are in the CSV file."
    )
    title = f"Accuracy against work with caches of keys and values ({document['model']['name']})"
    lines = []
    for row in document["rows"]:
        change = row["difference"] or {}
        values = (row["accuracy"], *row["interval"], *(change.get(name) for name in ("mean", "low", "high")))
        values = (*values, row["work"]["total"], row["work_ratio"])
        lines.append((row["task"], row["policy"], row["n"], *map(style.number, values)))
    return DrawnFigure("accuracy-against-work", title, caption, sheet, tuple(WORK.split()), lines)


def _draw_task(axes: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for row in rows:
        work, (low, high) = row["work"]["total"], row["interval"]
        axes.vlines(work, 100 * low, 100 * high, color="#bbbbbb", linewidth=0.8, zorder=1)
        _mark(axes, row, [work], [100 * row["accuracy"]])
    works = [row["work"]["total"] for row in rows]
    across = math.log(max(works) / min(works)) or 1.0
    up = 100 * (max(row["interval"][1] for row in rows) - min(row["interval"][0] for row in rows)) or 1.0
    labels: dict[tuple[float, float], list[str]] = {}
    for row, work in zip(rows, works, strict=True):  # names that would lie upon each other stand side by side
        at = (work, 100 * row["accuracy"])
        beside = (one for one in labels if abs(math.log(work / one[0])) < 0.03 * across)
        near = next((one for one in beside if abs(at[1] - one[1]) < 0.03 * up), at)
        labels.setdefault(near, []).append(str(names.index(row["policy"])))
    for place, numbers in labels.items():
        axes.annotate(", ".join(numbers), place, xytext=(3, 3), textcoords="offset points", fontsize="x-small")
    axes.axhline(100 * rows[0]["accuracy"], color=style.INK, linestyle="--", linewidth=0.6, zorder=0)
    axes.set(xscale="log", xlabel="multiply-adds of an answer", ylabel="accuracy, %")


def _mark(axes: Any, row: Mapping[str, Any], across: Sequence[float], up: Sequence[float]) -> Any:
    if row["policy"] == "none":
        colour, marker = style.INK, "*"
    elif row["budget"] is not None:
        colour, marker = style.ORANGE if row["cache"] != "none" else style.VERMILLION, "s"
    else:
        colour, marker = style.VERMILLION if row["cache"] == "none" else style.BLUE, "o"
    face = "white" if row["threshold"] or row["factor"] else colour
    look: dict[str, Any] = {"linestyle": "none", "markersize": 5, "color": colour, "markerfacecolor": face}
    return axes.plot(across, up, marker=marker, zorder=2, **look)[0]


def draw_drift(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw ``drift.json``: a column for each measure, a row for each lag; 0 is no drift in all of them."""
    lags, lines = document["lags"], []
    with style.figure_style(wide=True):
        sheet = style.new_sheet(style.WIDER, 2.3 * len(lags) + 0.9)
        grid = sheet.subplots(len(lags), len(MEASURES), squeeze=False, sharex=True)
        for row in document["drift"]:
            measure, lag, kind = row["measure"], row["lag"], row["class"]
            axes, (colour, marker) = grid[lags.index(lag)][list(MEASURES).index(measure)], LOOKS[kind]
            ends = [row["by_layer"][end] for end in ("mean", "low", "high")]
            numbers = np.array(ends, float)
            layers = np.flatnonzero(~np.isnan(numbers[0]))
            lines += [(measure, lag, kind, at, *(style.number(end[at]) for end in ends)) for at in layers.tolist()]
            if measure.endswith("cosine"):  # turned, so that 0 is no drift
                numbers = 1 - numbers[[0, 2, 1]]
            axes.plot(layers, numbers[0, layers], color=colour, marker=marker, markersize=4, label=kind)
            bars = np.flatnonzero(~np.isnan(numbers).any(axis=0))
            axes.vlines(bars, *numbers[1:, bars], color=colour, linewidth=1)
        for at, lag in enumerate(lags):
            grid[at][0].set_ylabel(f"{lag} step{'s' * (lag > 1)} apart")
            for axes in grid[at]:
                axes.set_yscale("symlog", linthresh=1e-4)
                axes.set_ylim(bottom=0)
        for axes, title in zip(grid[0], MEASURES.values(), strict=True):
            axes.set_title(title)
        for axes in grid[-1]:
            axes.set_xlabel("layer")
            style.whole_numbers(axes.xaxis)
        handles, labels = grid[0][0].get_legend_handles_labels()
        sheet.legend(handles, labels, loc="outside lower center", ncols=len(LOOKS))
    caption = (
        f"Drift of the keys and values of {document['model']['name']} over {counted(document['prompts'], 'prompt')}, "
        "mean over heads; bars are 95 % intervals over prompts, absent with fewer than five. 0 is no drift. new: "
        "written in between; sink: by Eq. 3 at the later step; mask: masked at both; text: the rest. What it does not "
        "show: what a stale key costs, which depends on who reads it."
    )
    title = f"Drift of keys and values ({document['model']['name']})"
    return DrawnFigure("drift-by-layer", title, caption, sheet, DRIFT_HEADER, lines)


HIDDEN = (
    ("loss_without_top", "the top key of every head", style.VERMILLION, "--"),
    ("loss_without_rowmass", "random keys that take as much", style.BLUE, ":"),
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
    with style.figure_style(wide=len(runs) > 1):
        sheet = style.new_sheet(style.WIDER if len(runs) > 1 else style.WIDE, 8.6)
        grid = sheet.subplots(5, len(runs), sharex="col", sharey="row", squeeze=False)
        rows: list[Row] = []
        for run, column in zip(runs, grid.T, strict=True):
            rows += _draw_run(run, column)
        labels = ("held-out loss,\nnats", "cost of hiding,\nnats", *(label for _, label in PANELS))
        for label, axes in zip(labels, grid[:, 0], strict=True):
            axes.set_ylabel(label)
        grid[1, 0].legend(loc="upper left")
        named = (pair for axes in grid[2] for pair in zip(*axes.get_legend_handles_labels(), strict=True))
        handles = {label: line for line, label in named}
        sheet.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
        message = []
        for run in runs:
            there = (born := run.born())[born >= 0]
            when = f"; the first does from update {there.min():,} on" if there.size else ""
            given = f"heads give one key {SHARE:.0%} of their attention or more{when}"
            message.append(f"{run.name}: {there.size} of {born.size} {given}")
        style.say(sheet, *message)
    caption = (
        "Top: held-out loss, and how much it rises while keys are hidden from the judged queries in all heads. Below, "
        "a line for each head: the share of the judged queries' attention that its top key takes; the value norm of "
        "that key over the median of its canvas; the share of canvases on which it stands where it stood at the moment "
        "before. Judged are the masked queries of a diffusion model and those from the 64th on of an autoregressive "
        f"one, on {runs[0].manifest['canvases']} canvases. What it does not show: other seeds, and single heads."
    )
    title = f"Sinks being born ({', '.join(run.name for run in runs)})"
    return DrawnFigure(FILE, title, caption, sheet, HEADER, rows)


def _draw_run(run: Emergence, panels: Sequence[Any]) -> list[Row]:
    first = run.updates[1] / 2 if len(run.updates) > 1 else 1  # 0 has no logarithm
    at = [max(update, first) for update in run.updates]
    losses = [run.stacked(name).mean(1) for name in LOSSES]
    curves = [getattr(run, name) for name, _ in PANELS]
    panels[0].plot(at, losses[0], color=style.INK, linewidth=1.3)
    for (_, label, colour, line), loss in zip(HIDDEN, losses[1:], strict=True):
        panels[1].plot(at, loss - losses[0], line, color=colour, linewidth=1.3, label=label)
    panels[0].set_title(style.plain(run.name))
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
    panels[2].axhline(SHARE, color=style.INK, linewidth=0.6, linestyle=":")
    panels[-1].set(xscale="log", xlabel=f"update (the first point is update {min(run.updates)})")
    return [
        (
            run.name,
            update,
            *head,
            *map(style.number, [*(curve[(at, *head)] for curve in curves), *(loss[at] for loss in losses)]),
        )
        for at, update in enumerate(run.updates)
        for head in np.ndindex(layers, heads)
    ]
