"""Figure 1: how much attention each token receives over the steps, in one head and in the mean over all heads."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.incoming_attention import Incoming, draw_incoming, linear_norm, mean_name, names_room
from sinkscope.figures.position_cut import Cut
from sinkscope.figures.style import INK, VERMILLION, WIDE, new_sheet, number, plain, token_label, whole_numbers
from sinkscope.figures.subject import Subject, of_newest

STRONGEST_OF_MEAN = 3
"""Positions of the mean that are drawn in any case, however far they are from the others."""


@final
class IncomingAttention(Figure):
    """Above, the head with the clearest move; below, the mean over all layers and heads."""

    name = "1"
    file = "figure1-incoming-attention"
    title = "Figure 1: incoming attention per token over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw a column of two maps for each trace, each row of maps on one colour scale."""
        percent = in_percent(subjects)
        rows = [[_head_panel(one, percent) for one in subjects], [_mean_panel(one, percent) for one in subjects]]
        cuts = [_cut(above, below) for above, below in zip(*rows, strict=True)]
        many = len(subjects) > 1
        sheet = new_sheet(4.2 * len(subjects) + 0.6 if many else WIDE, 5.4 if many else 4.6)
        grid = sheet.subplots(2, len(subjects), squeeze=False, height_ratios=[2, 1], sharex="col", sharey="col")
        apart = (
            len({one.followed.newest for one in subjects}) > 1
        )  # 16 queries and hundreds of them need scales of their own
        for row, panels in enumerate(rows):
            for group in [[at] for at in range(len(panels))] if apart else [range(len(panels))]:
                norm = linear_norm([panels[at].drawn.values for at in group])
                for at in group:
                    axes, panel = grid[row, at], panels[at]
                    image = draw_incoming(axes, panel.drawn, norm, cuts[at], names=row == 0)
                    axes.set_title(panel.title, pad=names_room(axes, panel.drawn, cuts[at]) if row == 0 else None)
                bar = sheet.colorbar(
                    image, ax=[grid[row, at] for at in group], aspect=(24, 12)[row], pad=0.015, extend="max"
                )
                if group[-1] == len(panels) - 1:
                    bar.set_label(("attention received, " if row == 0 else "") + ("%" if percent else "queries' worth"))
            grid[row, 0].set_ylabel("step")
        for axes in grid[1]:
            axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
            whole_numbers(axes.yaxis)
        _legend(sheet)
        letters = int((11 if many else 14) * sheet.get_figwidth())
        message = "\n".join(textwrap.fill(plain(line), letters) for line in _message(rows[0]))
        sheet.suptitle(message, x=0.01, ha="left")
        value = "percent_of_attention" if percent else "column_sum"
        header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
        lines = [line for panels in rows for panel in panels for line in _lines(panel)]
        return self.drawn(subjects, sheet, _caption(rows[0]), header, lines)


@dataclass(frozen=True)
class _Panel:
    """One map, and the layer and head that its rows name."""

    one: Subject
    name: str
    title: str
    drawn: Incoming
    layer: int | str
    head: int | str


def in_percent(subjects: Sequence[Subject]) -> bool:
    """Return whether percent are drawn, not queries' worth: for the newest queries only, or for several models."""
    return len(subjects) > 1 or subjects[0].followed.newest


def as_drawn(columns: np.ndarray, percent: bool) -> np.ndarray:
    """Return columns [step, …, key] in the unit drawn."""
    if not percent:
        return columns
    total = np.nansum(columns, axis=-1, keepdims=True)
    return np.divide(100 * columns, total, out=np.zeros_like(columns), where=total > 0)


def _head_panel(one: Subject, percent: bool) -> _Panel:
    chosen = one.highlights.only or one.highlights.clearest
    if chosen is None:
        largest = one.highlights.largest_asked
        layer, head = (int(at) for at in np.unravel_index(int(largest.argmax()), largest.shape))
    else:
        layer, head = chosen.layer, chosen.head
    values, main = as_drawn(one.head_columns(layer, head), percent), one.main[:, layer, head]
    drawn = Incoming(
        one.trace, one.head_name(layer, head), values, main, one.written, one.last_canvas, one.prompt_length
    )
    title = f"{plain(one.heading)},\n{one.head_name(layer, head)}, attention {one.queries_text}"
    return _Panel(one, "head", title, drawn, layer, head)


def _mean_panel(one: Subject, percent: bool) -> _Panel:
    layer = one.place[0]
    mean = one.prompt.mean_columns if layer is None else one.mean_columns_of(layer)
    heads = one.main[0].size if layer is None else one.main.shape[2]
    name = mean_name(heads, layer)
    drawn = Incoming(one.trace, name, as_drawn(mean, percent), None, one.written, one.last_canvas, one.prompt_length)
    title = f"{name}, on a scale of its own"
    return _Panel(one, "mean", title, drawn, "all" if layer is None else layer, "all")


def _cut(above: _Panel, below: _Panel) -> Cut:
    """Return which positions are drawn: main sinks, the answer, and the largest columns of the mean."""
    one = above.one
    strongest = np.argsort(-np.nan_to_num(below.drawn.values).mean(axis=0), kind="stable")[:STRONGEST_OF_MEAN]
    answer = range(one.prompt_length, len(one.last_canvas))
    return Cut.around(
        [*(position for position, _, _ in above.drawn.stays), *answer, *strongest.tolist()], len(one.last_canvas)
    )


def _message(panels: Sequence[_Panel]) -> list[str]:
    """Return what the upper row shows, a sentence for each model, which its numbers bear out."""
    return [f"{panel.one.label}: {_story(panel)}" for panel in panels]


def _story(panel: _Panel) -> str:
    found, drawn = panel.one.highlights, panel.drawn
    moves = [move for move in found.moves if (move.layer, move.head) == (panel.layer, panel.head)]
    if moves:
        best = max(moves, key=lambda move: move.held)
        before = next(stay for stay in drawn.stays if stay[2] == best.step)
        after = next(stay for stay in drawn.stays if stay[1] == best.step + 1)
        more = "" if len(moves) == 1 else f", its clearest of {len(moves)} moves"
        places = f"from {drawn.name_of(*before)} to {drawn.name_of(*after)}"
        return f"in step {best.step + 1} the main sink moves {places}{more}"
    places = {position for position, _, _ in drawn.stays}
    if not places:
        return "no head has a sink by Eq. 3" if found.only is None else "no token is a sink by Eq. 3"
    longest = max(drawn.stays, key=lambda stay: stay[2] - stay[1])
    if len(places) == 1:
        steps = sum(last - first + 1 for _, first, last in drawn.stays)
        when = "" if steps == len(drawn.values) else f", in {steps} of {len(drawn.values)} steps"
        return f"the main sink stays on {drawn.name_of(*longest)}{when}"
    name = drawn.name_of(*longest)
    swapping = {one[0] for pair in pairwise(drawn.stays) for one in pair if pair[1][1] == pair[0][2] + 1}
    if not swapping:
        return f"the main sink stands at {len(places)} places, with steps without a sink between, longest on {name}"
    more = (
        f", {len(places) - len(swapping)} more stand behind steps without a sink" if len(places) > len(swapping) else ""
    )
    return f"the main sink does not move; {len(swapping)} sinks swap their rank{more}, {name} leads longest"


def _legend(sheet: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="none", edgecolor=VERMILLION, linewidth=1, label="main sink (Eq. 3)"),
        Line2D(
            [],
            [],
            marker=".",
            linestyle="none",
            color=INK,
            markersize=4,
            markeredgewidth=0,
            label="token written in this step",
        ),
    ]
    sheet.legend(handles=handles, loc="outside lower center", ncols=2)


def _lines(panel: _Panel) -> list[tuple[Any, ...]]:
    one, drawn = panel.one, panel.drawn
    committed = {(step, position) for step, position, _ in drawn.written.tolist()}
    names: dict[int, str] = {-1: ""}
    lines = []
    for step, values in enumerate(drawn.values):
        tokens = one.prompt.canvas.tokens[step].tolist()
        main = -1 if drawn.main is None else int(drawn.main[step])
        for position in np.flatnonzero(~np.isnan(values)).tolist():
            token = tokens[position]
            if token not in names:
                names[token] = token_label(one.trace, token)
            marked, commit = int(main == position), int((step, position) in committed)
            value = number(values[position])
            lines.append(
                (one.label, panel.name, panel.layer, panel.head, step, position, names[token], value, marked, commit)
            )
    width = drawn.values.shape[1]
    for step, position, token in drawn.written.tolist():
        if position >= width or np.isnan(
            drawn.values[step, position]
        ):  # behind the canvas, where an autoregressive model writes
            lines.append(
                (
                    one.label,
                    panel.name,
                    panel.layer,
                    panel.head,
                    step,
                    position,
                    token_label(one.trace, token),
                    "",
                    0,
                    1,
                )
            )
    return lines


def _caption(panels: Sequence[_Panel]) -> str:
    subjects = [panel.one for panel in panels]
    parts = [f"{panel.one.label}, {panel.drawn.name}: {_story(panel)}" for panel in panels]
    newest = of_newest(subjects, "only {queries} are added up, because a sum over all queries hardly moves.")
    if len({one.followed.newest for one in subjects}) > 1:
        newest += " Sixteen queries agree more easily than hundreds do: compare where sinks are and how they move, "
        newest += "not how strong they are."
    which = (
        f"the head{subjects[0].where} with the clearest move (both places hold much attention for long), or the "
        "strongest sink where none moves"
    )
    if subjects[0].highlights.only is not None:
        which = "the head that was asked for"
    layer = subjects[0].place[0]
    heads = "all heads" if layer is None else f"the heads of layer {layer}"
    return (
        f"How much attention each token of the canvas receives, one row per step. Above: {which} ({'; '.join(parts)}). "
        f"Below: the mean over {heads}, on a scale of its own; most heads' sinks stay or stand elsewhere, so they "
        "blur. Colours are linear. Tokens are named as in the final canvas; grey: not on the canvas yet; white: parts "
        f"of the prompt that are left out, without a main sink of this head.{newest} What it does not show: other "
        "heads, whether the model needs this attention, and whether a sink that follows the dots follows the tokens "
        "written or only their order from left to right."
    )
