"""Figures 1 and 2: the attention that each token receives over the steps, and which positions a step commits."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Int
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.incoming_attention import (
    Incoming,
    draw_incoming,
    followed_columns,
    mean_name,
    norm_of,
)
from sinkscope.figures.style import (
    BLUE,
    INK,
    SKY,
    VERMILLION,
    WIDE,
    new_sheet,
    number,
    plain,
    say,
    tick_label,
    token_label,
    whole_numbers,
)
from sinkscope.figures.subject import OF_MOVES, FigureError, Subject, of_newest


@final
class IncomingAttention(Figure):
    """Above, the head with the clearest move; below, the mean over all layers and heads."""

    name = "1"
    file = "figure1-incoming-attention"
    title = "Figure 1: incoming attention per token over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        many = len(subjects) > 1
        root = "\n(colours by square root)" * many
        percent = many or subjects[0].followed.newest  # comparable between models
        rows = list(zip(*(_panels(one, percent) for one in subjects), strict=True))
        cuts = [above.drawn.cut(below.drawn.values) for above, below in zip(*rows, strict=True)]
        sheet = new_sheet(4.2 * len(subjects) + 0.6 if many else WIDE, 5.4 if many else 4.6)
        grid = sheet.subplots(2, len(subjects), squeeze=False, height_ratios=[2, 1], sharex="col", sharey="col")
        for row, panels in enumerate(rows):
            norm = norm_of([panel.drawn.values for panel in panels], 0.5 if many else 1)
            for axes, panel, cut in zip(grid[row], panels, cuts, strict=True):
                image = draw_incoming(axes, panel.drawn, norm, cut, panel.title, names=row == 0)
            bar = sheet.colorbar(image, ax=list(grid[row]), aspect=(24, 12)[row], pad=0.015, extend="max")
            unit = "%" if percent else "queries' worth"
            bar.set_label(unit if row else f"attention received, {unit}{root}")
            grid[row, 0].set_ylabel("step")
        for axes in grid[1]:
            axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
            whole_numbers(axes.yaxis)
        dot: dict[str, Any] = {"marker": ".", "linestyle": "none", "markersize": 4, "markeredgewidth": 0}
        handles = [
            Patch(facecolor="none", edgecolor=VERMILLION, linewidth=1, label="main sink"),
            Line2D([], [], color=INK, label="token written in this step", **dot),
        ]
        sheet.legend(handles=handles, loc="outside lower center", ncols=2)
        say(sheet, *(f"{one.label}: {one.headline}" for one in subjects))
        value = "percent_of_attention" if percent else "column_sum"
        header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
        lines = [line for panels in rows for panel in panels for line in _lines(panel)]
        first = subjects[0]
        which = f"the head{first.where} with the strongest sink, or the clearest move where a tenth of them move"
        caption = (
            "Attention that each token receives, one row a step. Above: "
            f"{which if first.only is None else 'one head'}; below: the mean, in which other heads' sinks blur, on a "
            "scale of its own. Grey: not on the canvas yet; white: parts of the prompt without a main sink, left "
            f"out.{of_newest(subjects, 'only {queries} are added up.')} {OF_MOVES} What it does not show: other heads, "
            "and whether the model needs this attention."
        )
        return self.drawn(subjects, sheet, caption, header, lines)


class _Panel(NamedTuple):
    one: Subject
    title: str
    drawn: Incoming
    layer: int | None
    head: int | None


def _panels(one: Subject, percent: bool) -> tuple[_Panel, _Panel]:
    """Return the map of a head and that of a mean, in queries' worth, or in percent of all attention that they hold."""

    def drawn(name: str, columns: np.ndarray, main: np.ndarray | None) -> Incoming:
        if percent:
            total = np.nansum(columns, axis=-1, keepdims=True)
            columns = np.divide(100 * columns, total, out=np.zeros_like(columns), where=total > 0)
        return Incoming(one.trace, name, columns, main, one.written, one.last_canvas, one.prompt_length)

    chosen, largest = one.only or one.clearest, one.largest
    place = np.unravel_index(int(largest.argmax()), largest.shape)
    layer, head = map(int, place) if chosen is None else (chosen.layer, chosen.head)
    name = one.head_name(layer, head)
    title = f"{plain(one.heading)},\n{name}, attention from {one.followed.queries_text}"
    above = drawn(name, followed_columns(one.trace, layer, head), one.main[:, layer, head])
    of_layer, (layers, heads) = one.place[0], one.main.shape[1:]
    mean = one.prompt.mean_columns
    if of_layer is not None:
        mean = np.mean([followed_columns(one.trace, of_layer, head) for head in range(heads)], axis=0)
    name = mean_name(layers * heads if of_layer is None else heads, of_layer)
    below = _Panel(one, f"{name}, on a scale of its own", drawn(name, mean, None), of_layer, None)
    return _Panel(one, title, above, layer, head), below


def _lines(panel: _Panel) -> Iterator[tuple[Any, ...]]:
    one, drawn, kind = panel.one, panel.drawn, "mean" if panel.head is None else "head"
    place = (kind, *("all" if at is None else at for at in (panel.layer, panel.head)))
    committed = {(step, position): token for step, position, token in drawn.written.tolist()}
    names = {token: token_label(one.trace, token) for token in {*np.unique(one.prompt.canvas.tokens).tolist()}}
    shown = ~np.isnan(drawn.values)
    for step, position in np.argwhere(shown).tolist():
        marked = int(drawn.main is not None and drawn.main[step] == position)
        value, commit = number(drawn.values[step, position]), int((step, position) in committed)
        token = names[int(one.prompt.canvas.tokens[step, position])]
        yield (one.label, *place, step, position, token, value, marked, commit)
    for (step, position), token in committed.items():  # behind the canvas, where an autoregressive model writes
        if position >= shown.shape[1] or not shown[step, position]:
            yield (one.label, *place, step, position, token_label(one.trace, token), "", 0, 1)


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
