"""The figure of a comparison of caches: accuracy against multiply-adds, a panel for each task."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sinkscope.counts import counted
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import BLUE, INK, ORANGE, VERMILLION, WIDE, WIDER, figure_style, new_sheet, number, plain

HEADER = tuple(
    "task policy n accuracy low high difference difference_low difference_high multiply_adds work_ratio".split()
)
SIDE_BY_SIDE = 3


def draw_accuracy_and_work(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw the rows of ``caches.json``; points are numbered as in the legend below."""
    tasks = list(dict.fromkeys(row["task"] for row in document["rows"]))
    names = list(dict.fromkeys(row["policy"] for row in document["rows"]))
    across, down = min(len(tasks), SIDE_BY_SIDE), -(-len(tasks) // SIDE_BY_SIDE)
    wide, columns = len(tasks) > 1, 3 if len(tasks) > 1 else 2
    with figure_style(wide=wide):
        sheet = new_sheet(WIDER if wide else WIDE, 3.2 * down + 0.17 * -(-len(names) // columns) + 0.5)
        grid = sheet.subplots(down, across, squeeze=False)
        for axes, task in zip(grid.flat, tasks, strict=False):
            _panel(axes, [row for row in document["rows"] if row["task"] == task], names)
            axes.set_title(plain(task))
        for axes in list(grid.flat)[len(tasks) :]:
            axes.set_axis_off()
        handles = [
            _mark(grid.flat[0], row, [], [])
            for row in ({one["policy"]: one for one in reversed(document["rows"])}[name] for name in names)
        ]
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
    return DrawnFigure(
        "accuracy-against-work", title, caption, sheet, HEADER, [_numbers(row) for row in document["rows"]]
    )


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for row in rows:
        work, (low, high) = row["work"]["total"], row["interval"]
        axes.vlines(work, 100 * low, 100 * high, color="#bbbbbb", linewidth=0.8, zorder=1)
        _mark(axes, row, [work], [100 * row["accuracy"]])
    for place, numbers in _labels(rows, names):
        axes.annotate(numbers, place, xytext=(3, 3), textcoords="offset points", fontsize="x-small")
    axes.axhline(100 * rows[0]["accuracy"], color=INK, linestyle="--", linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("multiply-adds of an answer")
    axes.set_ylabel("accuracy, %")


def _labels(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[tuple[float, float], str]]:
    """Return places and numbers; points whose numbers would lie upon each other have them side by side."""
    works = [row["work"]["total"] for row in rows]
    across = math.log(max(works) / min(works)) or 1.0
    up = 100 * (max(row["interval"][1] for row in rows) - min(row["interval"][0] for row in rows)) or 1.0
    found: dict[tuple[float, float], list[str]] = {}
    for row, work in zip(rows, works, strict=True):
        at = (work, 100 * row["accuracy"])
        near = (
            one for one in found if abs(math.log(work / one[0])) < 0.03 * across and abs(at[1] - one[1]) < 0.03 * up
        )
        found.setdefault(next(near, at), []).append(str(names.index(row["policy"])))
    return [(place, ", ".join(numbers)) for place, numbers in found.items()]


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


def _numbers(row: Mapping[str, Any]) -> tuple[Any, ...]:
    change = row["difference"] or {}
    values = (row["accuracy"], *row["interval"], *(change.get(name) for name in ("mean", "low", "high")))
    return (row["task"], row["policy"], row["n"], *map(number, (*values, row["work"]["total"], row["work_ratio"])))
