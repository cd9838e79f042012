"""Figure 2: how a model decodes: snapshots of its answer, and which positions it commits when."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import BLUE, SKY, WIDE, DrawnFigure, new_figure, plain, whole_numbers
from sinkscope.figures.labels import tick_label, token_label

SNAPSHOTS = (0.2, 0.5, 0.8)
MOST_CELLS = 64
COMMITTED, NEW, MASKED, ABSENT = "committed before", "committed in this step", "masked", "not there yet"
COLOURS = {COMMITTED: SKY, NEW: BLUE, MASKED: "#d9d9d9", ABSENT: "white"}
STATES = tuple(COLOURS)


def decoding_order(digests: Sequence[Digest]) -> DrawnFigure | str:
    """Draws Figure 2; several traces stand side by side."""
    answering = [one for one in digests if len(one.canvas) > one.prompt_length and len(one.written)]
    if not answering:
        return "how the model decodes (Figure 2): the trace does not say what was committed"
    many = len(answering) > 1
    wrap = 12 if many else 16
    cells = max(min(MOST_CELLS, len(one.canvas) - one.prompt_length) for one in answering)
    lines = math.ceil(cells / wrap)
    height = 0.21 * (lines * len(SNAPSHOTS)) + 0.9
    figure = new_figure(5.6 * len(answering) if many else WIDE, height + 3.3)
    grid = figure.subplots(2, len(answering), squeeze=False, gridspec_kw={"height_ratios": [height, 2.6]})
    rows: list[tuple[Any, ...]] = []
    for column, one in enumerate(answering):
        states = states_of(one)
        _snapshots(grid[0, column], one, states, wrap, lines)
        _raster(grid[1, column], one, states)
        if column == 0:
            grid[1, column].set_ylabel("step")
        rows += _lines(one)
    _legend(figure)
    figure.suptitle("How the answer is decoded: snapshots above, every step below", x=0.01, ha="left")
    header = ("model", "position", "position_in_answer", "step_committed", "order", "token")
    return DrawnFigure("figure2-decoding", titled("Figure 2: how the models decode", answering), _caption(answering), figure, header, rows)


def states_of(one: Digest) -> np.ndarray:
    """[step, position of the answer], numbers of `STATES`."""
    width = len(one.canvas) - one.prompt_length
    when = np.full(width, one.steps)
    for step, position, _ in one.written.tolist():
        if position >= one.prompt_length:
            when[position - one.prompt_length] = min(when[position - one.prompt_length], step)
    steps = np.arange(one.steps)[:, None]
    there = np.arange(one.prompt_length, len(one.canvas)) < one.lengths[:, None]
    later = np.where(there, STATES.index(MASKED), STATES.index(ABSENT))
    return np.where(when < steps, STATES.index(COMMITTED), np.where(when == steps, STATES.index(NEW), later))


def _snapshots(axes: Any, one: Digest, states: np.ndarray, wrap: int, lines: int) -> None:
    from matplotlib.patches import Rectangle

    axes.set_axis_off()
    axes.set_xlim(0, wrap)
    shown = min(MOST_CELLS, states.shape[1])
    top = 0.0
    for part in SNAPSHOTS:
        step = min(one.steps - 1, round(part * one.steps))
        axes.text(0, top + 0.75, f"step {step}", fontsize="small", va="center", fontweight="bold")
        top += 1.1
        for place in range(shown):
            state = STATES[states[step, place]]
            if state == ABSENT:
                continue
            x, y = place % wrap, top + place // wrap
            axes.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, facecolor=COLOURS[state], edgecolor="none"))
            label = "" if state == MASKED else plain(tick_label(one.trace, int(one.canvas[one.prompt_length + place]), 7))
            axes.text(
                x + 0.5,
                y + 0.52,
                label,
                ha="center",
                va="center",
                fontsize="xx-small",
                color="white" if state == NEW else "black",
                clip_on=True,
            )
        top += lines + 0.35
    axes.set_ylim(top, 0)
    cut = f", first {shown} tokens of the answer" if shown < states.shape[1] else ""
    axes.set_title(f"{plain(one.heading)}{cut}")


def _raster(axes: Any, one: Digest, states: np.ndarray) -> None:
    from matplotlib.colors import ListedColormap

    first = one.prompt_length
    extent = (first - 0.5, len(one.canvas) - 0.5, one.steps - 0.5, -0.5)
    axes.imshow(
        states,
        aspect="auto",
        cmap=ListedColormap(list(COLOURS.values())),
        vmin=-0.5,
        vmax=len(STATES) - 0.5,
        interpolation="nearest",
        extent=extent,
    )
    whole_numbers(axes.xaxis, axes.yaxis)
    axes.set_xlabel("position in the canvas (the answer)")


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=COLOURS[state], edgecolor="#888888", linewidth=0.4, label=state) for state in (COMMITTED, NEW, MASKED, ABSENT)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


def _lines(one: Digest) -> list[tuple[Any, ...]]:
    return [
        (one.label, position, position - one.prompt_length, step, order, token_label(one.trace, token))
        for order, (step, position, token) in enumerate(one.written.tolist())
    ]


def _caption(digests: Sequence[Digest]) -> str:
    parts = []
    for one in digests:
        order = one.written[np.argsort(one.written[:, 0], kind="stable"), 1]
        right = float((np.diff(order) == 1).mean()) if len(order) > 1 else float("nan")
        parts.append(f"{one.label}: {right:.0%} of the commits are one to the right of the one before")
    return (
        "The answer while it is written: the canvas going into three of the steps, with what the step commits, and below all steps. "
        f"{'; '.join(parts)}. What it does not show: how sure the model was, and what it would have written elsewhere."
    )
