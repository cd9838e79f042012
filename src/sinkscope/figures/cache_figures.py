"""The figures of caches: accuracy against multiply-adds, and how far keys and values drift between steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.counts import counted
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    VERMILLION,
    WIDE,
    WIDER,
    figure_style,
    new_sheet,
    number,
    plain,
    whole_numbers,
)

WORK_HEADER = tuple(
    "task policy n accuracy low high difference difference_low difference_high multiply_adds work_ratio".split()
)
SIDE_BY_SIDE = 3
DRIFT_HEADER = ("measure", "lag", "class", "layer", "mean", "low", "high")
LOOKS = {"new": (VERMILLION, "s"), "sink": (ORANGE, "D"), "mask": (BLUE, "o"), "text": (GREEN, "^")}
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
    with figure_style(wide=wide):
        sheet = new_sheet(WIDER if wide else WIDE, 3.2 * down + 0.17 * -(-len(names) // columns) + 0.5)
        grid = sheet.subplots(down, across, squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            _draw_task(axes, [row for row in document["rows"] if row["task"] == task], names)
            axes.set_title(plain(task))
        for axes in list(grid.flat)[len(tasks) :]:
            axes.set_axis_off()
        first_rows = {row["policy"]: row for row in reversed(document["rows"])}
        handles = [_mark(grid.flat[0], first_rows[name], [], []) for name in names]
        labels = [f"{at} {'plain sampling' if name == 'none' else plain(name)}" for at, name in enumerate(names)]
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
        lines.append((row["task"], row["policy"], row["n"], *map(number, values)))
    return DrawnFigure("accuracy-against-work", title, caption, sheet, WORK_HEADER, lines)


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
        near = (
            one for one in labels if abs(math.log(work / one[0])) < 0.03 * across and abs(at[1] - one[1]) < 0.03 * up
        )
        labels.setdefault(next(near, at), []).append(str(names.index(row["policy"])))
    for place, numbers in labels.items():
        axes.annotate(", ".join(numbers), place, xytext=(3, 3), textcoords="offset points", fontsize="x-small")
    axes.axhline(100 * rows[0]["accuracy"], color=INK, linestyle="--", linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("multiply-adds of an answer")
    axes.set_ylabel("accuracy, %")


def _mark(axes: Any, row: Mapping[str, Any], across: Sequence[float], up: Sequence[float]) -> Any:
    """Draw the points of a policy, which may be none, and return the handle for the legend."""
    if row["policy"] == "none":
        colour, marker = INK, "*"
    elif row["budget"] is not None:
        colour, marker = ORANGE if row["cache"] != "none" else VERMILLION, "s"
    else:
        colour, marker = VERMILLION if row["cache"] == "none" else BLUE, "o"
    face = "white" if row["threshold"] or row["factor"] else colour
    look: dict[str, Any] = {"linestyle": "none", "markersize": 5, "color": colour, "markerfacecolor": face}
    return axes.plot(across, up, marker=marker, zorder=2, **look)[0]


def draw_drift(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw ``drift.json``: a column for each measure, a row for each lag; 0 is no drift in all of them."""
    lags, lines = document["lags"], []
    with figure_style(wide=True):
        sheet = new_sheet(WIDER, 2.3 * len(lags) + 0.9)
        grid = sheet.subplots(len(lags), len(MEASURES), squeeze=False, sharex=True)
        for row in document["drift"]:
            by_layer = list(zip(*(row["by_layer"][end] for end in ("mean", "low", "high")), strict=True))
            found = [(layer, *values) for layer, values in enumerate(by_layer) if values[0] is not None]
            lines += [(row["measure"], row["lag"], row["class"], at, *map(number, values)) for at, *values in found]
            _draw_class(grid[lags.index(row["lag"])][list(MEASURES).index(row["measure"])], row, found)
        for at, lag in enumerate(lags):
            grid[at][0].set_ylabel(f"{lag} step{'s' * (lag > 1)} apart")
            for axes in grid[at]:
                axes.set_yscale("symlog", linthresh=1e-4)
                axes.set_ylim(bottom=0)
        for axes, title in zip(grid[0], MEASURES.values(), strict=True):
            axes.set_title(title)
        for axes in grid[-1]:
            axes.set_xlabel("layer")
            whole_numbers(axes.xaxis)
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


def _draw_class(axes: Any, row: Mapping[str, Any], found: Sequence[tuple[Any, ...]]) -> None:
    """Draw (layer, mean, low, high) of a class of tokens; cosines are turned, so that 0 is no drift."""
    colour, marker = LOOKS[row["class"]]
    if row["measure"].endswith("cosine"):
        found = [
            (at, 1 - mean, *(None if end is None else 1 - end for end in (high, low))) for at, mean, low, high in found
        ]
    layers, means = [at for at, *_ in found], [mean for _, mean, *_ in found]
    axes.plot(layers, means, color=colour, marker=marker, markersize=4, label=row["class"])
    for layer, _, low, high in found:
        if low is not None and high is not None:
            axes.vlines(layer, low, high, color=colour, linewidth=1)
