"""Figure 2: how a model decodes: three snapshots of its answer, and which positions it commits in which step."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Int
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import BLUE, SKY, WIDE, new_sheet, plain, say, tick_label, token_label, whole_numbers
from sinkscope.figures.subject import FigureError, Subject

SNAPSHOTS = (0.2, 0.5, 0.8)
MOST_CELLS = 64
COMMITTED, NEW, MASKED, ABSENT = "committed before", "committed in this step", "masked", "not there yet"
COLOURS = {COMMITTED: SKY, NEW: BLUE, MASKED: "#d9d9d9", ABSENT: "white"}
STATES = tuple(COLOURS)


@final
class DecodingOrder(Figure):
    """The answer after a fifth, half and four fifths of the steps, and every step below."""

    name = "2"
    file = "figure2-decoding"
    title = "Figure 2: how the models decode"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        diffusing = [one for one in subjects if not one.trace.causal]
        answering = [one for one in diffusing if len(one.last_canvas) > one.prompt_length and len(one.written)]
        if not answering:
            why = "does not say which tokens were committed" if diffusing else "is of a causal model"
            raise FigureError(f"the trace {why}")
        many = len(answering) > 1
        wrap = 12 if many else 16
        cells = max(min(MOST_CELLS, len(one.last_canvas) - one.prompt_length) for one in answering)
        lines = math.ceil(cells / wrap)
        height = 0.21 * (lines * len(SNAPSHOTS)) + 0.9
        sheet = new_sheet(5.6 * len(answering) if many else WIDE, height + 3.3)
        grid = sheet.subplots(2, len(answering), squeeze=False, gridspec_kw={"height_ratios": [height, 2.6]})
        limits = {"vmin": -0.5, "vmax": len(STATES) - 0.5}
        colours: dict[str, Any] = {"cmap": ListedColormap(list(COLOURS.values())), **limits}
        rows: list[tuple[Any, ...]] = []
        for column, one in enumerate(answering):
            states = states_of(one)
            _snapshots(grid[0, column], one, states, wrap, lines)
            axes, first = grid[1, column], one.prompt_length
            extent = (first - 0.5, len(one.last_canvas) - 0.5, one.summary.steps - 0.5, -0.5)
            axes.imshow(states, aspect="auto", interpolation="nearest", extent=extent, **colours)
            whole_numbers(axes.xaxis, axes.yaxis)
            axes.set_xlabel("position in the canvas (the answer)")
            for order, (step, position, token) in enumerate(one.written.tolist()):
                rows.append((one.label, position, position - first, step, order, token_label(one.trace, token)))
        grid[1, 0].set_ylabel("step")
        look: dict[str, Any] = {"edgecolor": "#888888", "linewidth": 0.4}
        handles = [Patch(facecolor=colour, label=state, **look) for state, colour in COLOURS.items()]
        sheet.legend(handles=handles, loc="outside lower center", ncols=4 if sheet.get_figwidth() > 4 else 2)
        parts = []
        for one in answering:
            right = rightward(one.written)
            share = f"{right or 0:.0%} of the commits stand right of a token of the step before"
            parts.append(f"{one.label}: {'one step commits all tokens' if right is None else share}")
        say(sheet, *parts)
        caption = (
            "How the answer is written. Above: the canvas at the start of three steps, with the tokens that the step "
            "commits (writes). Below: all steps. What it does not show: how sure the model was."
        )
        header = ("model", "position", "position_in_answer", "step_committed", "order", "token")
        return self.drawn(answering, sheet, caption, header, rows)


def states_of(one: Subject) -> Int[np.ndarray, "step position"]:
    """Return the state of every position of the answer in every step, as an index into `STATES`."""
    canvas, size = one.prompt.canvas, len(one.last_canvas)
    masked, new = (np.zeros((one.summary.steps, size), bool) for _ in range(2))
    masked[:, : canvas.masked.shape[1]] = canvas.masked
    new[one.written[:, 0], one.written[:, 1]] = True
    there = np.arange(size) < canvas.lengths[:, None]
    before = np.where(there, np.where(masked, STATES.index(MASKED), STATES.index(COMMITTED)), STATES.index(ABSENT))
    return np.where(new, STATES.index(NEW), before)[:, one.prompt_length :]


def _snapshots(axes: Any, one: Subject, states: np.ndarray, wrap: int, lines: int) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, wrap)
    cells, steps, top = min(MOST_CELLS, states.shape[1]), one.summary.steps, 0.0
    labels = [plain(tick_label(one.trace, int(token), 7)) for token in one.last_canvas[one.prompt_length :][:cells]]
    for part in SNAPSHOTS:
        step = min(steps - 1, round(part * steps))
        axes.text(0, top + 0.75, f"step {step}", fontsize="small", va="center", fontweight="bold")
        top += 1.1
        for place, label in enumerate(labels):
            state = STATES[states[step, place]]
            if state == ABSENT:
                continue
            x, y = place % wrap, top + place // wrap
            axes.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, facecolor=COLOURS[state], edgecolor="none"))
            if state != MASKED:
                look = {"fontsize": "xx-small", "color": "white" if state == NEW else "black"}
                axes.text(x + 0.5, y + 0.52, label, ha="center", va="center", clip_on=True, **look)
        top += lines + 0.35
    axes.set_ylim(top, 0)
    cut = f", first {cells} tokens of the answer" if cells < states.shape[1] else ""
    axes.set_title(f"{plain(one.heading)}{cut}")


def rightward(written: Int[np.ndarray, "commit 3"]) -> float | None:
    """Return the share of commits whose left neighbour was committed in the last step with any before; None without."""
    places = [set(written[written[:, 0] == step, 1].tolist()) for step in np.unique(written[:, 0])]
    beside = [position - 1 in before for before, now in pairwise(places) for position in now]
    return sum(beside) / len(beside) if beside else None
