"""Figures 1 and 2: the attention that each token receives over the steps, and which positions a step commits."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Int
from matplotlib import rcParams
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from sinkscope.figures import style
from sinkscope.figures.figure import OF_MOVES, DrawnFigure, Figure, Row, of_newest
from sinkscope.figures.panels import Incoming, draw_incoming, norm_of
from sinkscope.figures.subject import FigureError, Subject


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
        above, below = list[Incoming](), list[Incoming]()
        for one in subjects:
            chosen, strongest = one.only or one.clearest, np.unravel_index(one.largest.argmax(), one.largest.shape)
            layer, head = map(int, strongest) if chosen is None else (chosen.layer, chosen.head)
            above.append(Incoming.of(one, layer, head, percent))
            below.append(Incoming.of(one, one.place[0], None, percent))
        cuts = [head.cut(mean.values) for head, mean in zip(above, below, strict=True)]
        sheet = style.new_sheet(4.2 * len(subjects) + 0.6 if many else style.WIDE, 5.4 if many else 4.6)
        grid = sheet.subplots(2, len(subjects), squeeze=False, height_ratios=[2, 1], sharex="col", sharey="col")
        for row, panels in enumerate((above, below)):
            norm = norm_of([panel.values for panel in panels], 0.5 if many else 1)
            for axes, panel, cut in zip(grid[row], panels, cuts, strict=True):
                one, title = panel.subject, f"{panel.name}, on a scale of its own"
                if row == 0:
                    title = f"{style.plain(one.heading)},\n{panel.name}, attention from {one.followed.queries_text}"
                image = draw_incoming(axes, panel, norm, cut, title, names=row == 0)
            unit = "%" if percent else "queries' worth"
            label = unit if row else f"attention received, {unit}{root}"
            sheet.colorbar(image, ax=list(grid[row]), aspect=(24, 12)[row], pad=0.015, extend="max", label=label)
            grid[row, 0].set_ylabel("step")
        for axes in grid[1]:
            axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
            style.whole_numbers(axes.yaxis)
        dot: dict[str, Any] = {"marker": ".", "linestyle": "none", "markersize": 4, "markeredgewidth": 0}
        handles = [
            Patch(facecolor="none", edgecolor=style.VERMILLION, linewidth=1, label="main sink"),
            Line2D([], [], color=style.INK, label="token written in this step", **dot),
        ]
        sheet.legend(handles=handles, loc="outside lower center", ncols=2)
        style.say(sheet, *(f"{one.label}: {one.headline}" for one in subjects))
        value = "percent_of_attention" if percent else "column_sum"
        header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
        lines = [line for panel in (*above, *below) for line in _lines(panel)]
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


def _lines(panel: Incoming) -> Iterator[Row]:
    one, kind = panel.subject, "mean" if panel.head is None else "head"
    place = (kind, *("all" if at is None else at for at in (panel.layer, panel.head)))
    committed = {(step, position): token for step, position, token in one.written.tolist()}
    names = {token: style.token_label(one.trace, token) for token in {*np.unique(one.prompt.canvas.tokens).tolist()}}
    shown = ~np.isnan(panel.values)
    for step, position in np.argwhere(shown).tolist():
        marked = int(panel.main is not None and panel.main[step] == position)
        value, commit = style.number(panel.values[step, position]), int((step, position) in committed)
        token = names[int(one.prompt.canvas.tokens[step, position])]
        yield (one.label, *place, step, position, token, value, marked, commit)
    for (step, position), token in committed.items():  # behind the canvas, where an autoregressive model writes
        if position >= shown.shape[1] or not shown[step, position]:
            yield (one.label, *place, step, position, style.token_label(one.trace, token), "", 0, 1)


SNAPSHOTS = (0.2, 0.5, 0.8)
MOST_CELLS = 64
COMMITTED, NEW, MASKED, ABSENT = "committed before", "committed in this step", "masked", "not there yet"
COLOURS = {COMMITTED: style.SKY, NEW: style.BLUE, MASKED: "#d9d9d9", ABSENT: "white"}
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
        many = len(subjects) > 1  # whose type is larger
        wrap = 12 if many else 16
        cells = max(min(MOST_CELLS, len(one.last_canvas) - one.prompt_length) for one in answering)
        lines = math.ceil(cells / wrap)
        height = 0.21 * (lines * len(SNAPSHOTS)) + 0.9
        sheet = style.new_sheet(5.6 * len(answering) if many else style.WIDE, height + 3.3)
        grid = sheet.subplots(2, len(answering), squeeze=False, gridspec_kw={"height_ratios": [height, 2.6]})
        colours: dict[str, Any] = {"cmap": ListedColormap([*COLOURS.values()]), "vmin": -0.5, "vmax": len(STATES) - 0.5}
        rows: list[Row] = []
        for column, one in enumerate(answering):
            states = states_of(one)
            _snapshots(grid[0, column], one, states, wrap, lines)
            axes, first = grid[1, column], one.prompt_length
            extent = (first - 0.5, len(one.last_canvas) - 0.5, one.summary.steps - 0.5, -0.5)
            axes.imshow(states, aspect="auto", interpolation="nearest", extent=extent, **colours)
            style.whole_numbers(axes.xaxis, axes.yaxis)
            axes.set_xlabel("position in the canvas (the answer)")
            for order, (step, position, token) in enumerate(one.written.tolist()):
                rows.append((one.label, position, position - first, step, order, style.token_label(one.trace, token)))
        grid[1, 0].set_ylabel("step")
        look: dict[str, Any] = {"edgecolor": "#888888", "linewidth": 0.4}
        handles = [Patch(facecolor=colour, label=state, **look) for state, colour in COLOURS.items()]
        narrow = sheet.get_figwidth() < 0.58 * rcParams["font.size"]
        sheet.legend(handles=handles, loc="outside lower center", ncols=2 if narrow else 4)
        shares = [(one.label, rightward(one.written)) for one in answering]
        beside = "of the commits stand right of a token of the step before"
        told = ("one step commits all tokens" if right is None else f"{right:.0%} {beside}" for _, right in shares)
        style.say(sheet, *(f"{label}: {text}" for (label, _), text in zip(shares, told, strict=True)))
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
    tokens = one.last_canvas[one.prompt_length :][:cells].tolist()
    labels = [style.plain(style.tick_label(one.trace, token, 6)) for token in tokens]
    for part in SNAPSHOTS:
        step = min(steps - 1, round(part * steps))
        axes.text(0, top + 0.75, f"step {step}", fontsize="small", va="center", fontweight="bold")
        top += 1.1
        for place, label in enumerate(labels):
            state, x, y = STATES[states[step, place]], place % wrap, top + place // wrap
            if state == ABSENT:
                continue
            axes.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, facecolor=COLOURS[state], edgecolor="none"))
            if state != MASKED:
                look = {"fontsize": "xx-small", "color": "white" if state == NEW else "black"}
                axes.text(x + 0.5, y + 0.52, label, ha="center", va="center", clip_on=True, **look)
        top += lines + 0.35
    axes.set_ylim(top, 0)
    cut = f", first {cells} tokens of the answer" if cells < states.shape[1] else ""
    axes.set_title(f"{style.plain(one.heading)}{cut}")


def rightward(written: Int[np.ndarray, "commit 3"]) -> float | None:
    """Return the share of commits whose left neighbour was committed in the last step with any before; None without."""
    places = [set(written[written[:, 0] == step, 1].tolist()) for step in np.unique(written[:, 0])]
    beside = [position - 1 in before for before, now in pairwise(places) for position in now]
    return sum(beside) / len(beside) if beside else None
