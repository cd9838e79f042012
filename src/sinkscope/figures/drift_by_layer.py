"""The figure of drift: how far keys and values move between steps, by layer and class of token."""

from collections.abc import Mapping
from typing import Any

from sinkscope.counts import counted
from sinkscope.figures.figure import DrawnFigure
from sinkscope.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    VERMILLION,
    WIDER,
    figure_style,
    new_sheet,
    number,
    whole_numbers,
)

LOOKS = {"new": (VERMILLION, "s"), "sink": (ORANGE, "D"), "mask": (BLUE, "o"), "text": (GREEN, "^")}
TITLES = {
    "key_cosine": "1 − cosine of keys",
    "value_cosine": "1 − cosine of values",
    "key_norm": "change of key norms",
    "value_norm": "change of value norms",
}
HEADER = ("measure", "lag", "class", "layer", "mean", "low", "high")


def draw_drift(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw ``drift.json``: a column for each measure, a row for each lag; 0 is no drift in all of them."""
    lags = document["lags"]
    with figure_style(wide=True):
        sheet = new_sheet(WIDER, 2.3 * len(lags) + 0.9)
        grid = sheet.subplots(len(lags), len(TITLES), squeeze=False, sharex=True)
        for row in document["drift"]:
            axes = grid[lags.index(row["lag"])][list(TITLES).index(row["measure"])]
            _draw(axes, row)
        for at, lag in enumerate(lags):
            grid[at][0].set_ylabel(f"{lag} step{'s' * (lag > 1)} apart")
            for axes in grid[at]:
                axes.set_yscale("symlog", linthresh=1e-4)
                axes.set_ylim(bottom=0)
        for axes, title in zip(grid[0], TITLES.values(), strict=True):
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
    return DrawnFigure(
        "drift-by-layer", title, caption, sheet, HEADER, [line for row in document["drift"] for line in _lines(row)]
    )


def _values(row: Mapping[str, Any]) -> list[tuple[int, float, float | None, float | None]]:
    """Return layer, mean, low and high of the layers that have a value, so that 0 is no drift."""
    turned, found = row["measure"].endswith("cosine"), []
    for layer, (mean, low, high) in enumerate(_by_layer(row)):
        if mean is not None:
            ends = (None if end is None else 1 - end for end in (high, low)) if turned else (low, high)
            found.append((layer, 1 - mean if turned else mean, *ends))
    return found


def _by_layer(row: Mapping[str, Any]) -> Any:
    return zip(*(row["by_layer"][end] for end in ("mean", "low", "high")), strict=True)


def _draw(axes: Any, row: Mapping[str, Any]) -> None:
    colour, marker = LOOKS[row["class"]]
    layers, means, _, _ = zip(*_values(row), strict=True) if _values(row) else ((), (), (), ())
    axes.plot(layers, means, color=colour, marker=marker, markersize=4, label=row["class"])
    for layer, _, low, high in _values(row):
        if low is not None and high is not None:
            axes.vlines(layer, low, high, color=colour, linewidth=1)


def _lines(row: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    place = (row["measure"], row["lag"], row["class"])
    return [
        (*place, layer, *map(number, values)) for layer, values in enumerate(_by_layer(row)) if values[0] is not None
    ]
