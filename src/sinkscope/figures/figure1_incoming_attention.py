"""Figure 1: how much attention each token receives over the steps, in one head and in the mean over all heads."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.incoming_attention import (
    Incoming,
    draw_incoming,
    followed_columns,
    linear_norm,
    mean_name,
)
from sinkscope.figures.style import INK, VERMILLION, WIDE, new_sheet, number, plain, token_label, whole_numbers
from sinkscope.figures.subject import Subject, of_newest


@final
class IncomingAttention(Figure):
    """Above, the head with the clearest move; below, the mean over all layers and heads."""

    name = "1"
    file = "figure1-incoming-attention"
    title = "Figure 1: incoming attention per token over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        many = len(subjects) > 1
        percent = many or subjects[0].followed.newest  # comparable between models
        rows = list(zip(*(_panels(one, percent) for one in subjects), strict=True))
        cuts = [above.drawn.cut(below.drawn.values) for above, below in zip(*rows, strict=True)]
        sheet = new_sheet(4.2 * len(subjects) + 0.6 if many else WIDE, 5.4 if many else 4.6)
        grid = sheet.subplots(2, len(subjects), squeeze=False, height_ratios=[2, 1], sharex="col", sharey="col")
        # 16 queries and hundreds of them need different scales
        apart = len({one.followed.newest for one in subjects}) > 1
        for row, panels in enumerate(rows):
            for group in [[at] for at in range(len(panels))] if apart else [range(len(panels))]:
                norm = linear_norm([panels[at].drawn.values for at in group])
                for at in group:
                    axes, panel = grid[row, at], panels[at]
                    image = draw_incoming(axes, panel.drawn, norm, cuts[at], panel.title, names=row == 0)
                over = [grid[row, at] for at in group]
                bar = sheet.colorbar(image, ax=over, aspect=(24, 12)[row], pad=0.015, extend="max")
                if group[-1] == len(panels) - 1:
                    bar.set_label(("attention received, " if row == 0 else "") + ("%" if percent else "queries' worth"))
            grid[row, 0].set_ylabel("step")
        for axes in grid[1]:
            axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
            whole_numbers(axes.yaxis)
        dot: dict[str, Any] = {"marker": ".", "linestyle": "none", "markersize": 4, "markeredgewidth": 0}
        handles = [
            Patch(facecolor="none", edgecolor=VERMILLION, linewidth=1, label="main sink (Eq. 3)"),
            Line2D([], [], color=INK, label="token written in this step", **dot),
        ]
        sheet.legend(handles=handles, loc="outside lower center", ncols=2)
        letters = int((11 if many else 14) * sheet.get_figwidth())
        message = [f"{panel.one.label}: {_story(panel)}" for panel in rows[0]]
        sheet.suptitle("\n".join(textwrap.fill(plain(line), letters) for line in message), x=0.01, ha="left")
        value = "percent_of_attention" if percent else "column_sum"
        header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
        lines = [line for panels in rows for panel in panels for line in _lines(panel)]
        return self.drawn(subjects, sheet, _caption(rows[0]), header, lines)


@dataclass(frozen=True)
class _Panel:
    """One map, of a layer and a head or of all."""

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


def _story(panel: _Panel) -> str:
    """Tell in words where the main sink stands or moves."""
    found, drawn = panel.one, panel.drawn
    moves = [move for move in found.moves if (move.layer, move.head) == (panel.layer, panel.head)]
    if moves:
        best = max(moves, key=lambda move: move.held)
        before = next(stay for stay in drawn.stays if stay[2] == best.step)
        after = next(stay for stay in drawn.stays if stay[1] == best.step + 1)
        more = "" if len(moves) == 1 else f", its clearest of {len(moves)} moves"
        places = f"from {drawn.name_of(*before)} to {drawn.name_of(*after)}"
        return f"in step {best.step + 1} the main sink moves {places}{more}"
    stood = {position for position, _, _ in drawn.stays}
    if not stood:
        return "no head has a sink by Eq. 3" if found.only is None else "no token is a sink by Eq. 3"
    longest = drawn.name_of(*max(drawn.stays, key=lambda stay: stay[2] - stay[1]))
    if len(stood) > 1:
        return (
            f"the main sink does not move; at {len(stood)} places it swaps its rank or returns after steps without a "
            f"sink, longest on {longest}"
        )
    steps = sum(last - first + 1 for _, first, last in drawn.stays)
    when = "" if steps == len(drawn.values) else f", in {steps} of {len(drawn.values)} steps"
    return f"the main sink stays on {longest}{when}"


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


def _caption(panels: Sequence[_Panel]) -> str:
    subjects, first = [panel.one for panel in panels], panels[0].one
    parts = "; ".join(f"{panel.one.label}, {panel.drawn.name}: {_story(panel)}" for panel in panels)
    newest = of_newest(subjects, "only {queries} are added up, because a sum over all queries hardly moves.")
    if len({one.followed.newest for one in subjects}) > 1:
        newest += " Sixteen queries agree more easily than hundreds do: compare where sinks are and how they move, "
        newest += "not how strong they are."
    which = (
        f"the head{first.where} with the clearest move (both places hold much attention for long), or the "
        "strongest sink where none moves"
    )
    if first.only is not None:
        which = "the head that was asked for"
    heads = "all heads" if first.place[0] is None else f"the heads of layer {first.place[0]}"
    return (
        f"How much attention each token of the canvas receives, one row per step. Above: {which} ({parts}). "
        f"Below: the mean over {heads}, on a scale of its own; most heads' sinks stay or stand elsewhere, so they "
        "blur. Colours are linear. Tokens are named as in the final canvas; grey: not on the canvas yet; white: parts "
        f"of the prompt that are left out, without a main sink of this head.{newest} What it does not show: other "
        "heads, whether the model needs this attention, and whether a sink that follows the dots follows the tokens "
        "written or only their order from left to right."
    )
