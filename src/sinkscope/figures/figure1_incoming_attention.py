"""Figure 1: how much attention each token receives over the steps, in one head and in the mean over all heads."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.incoming_attention import (
    Incoming,
    draw_incoming,
    followed_columns,
    mean_name,
    norm_of,
)
from sinkscope.figures.style import INK, VERMILLION, WIDE, new_sheet, number, plain, say, token_label, whole_numbers
from sinkscope.figures.subject import OF_MOVES, Subject, of_newest


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
            bar.set_label(("attention received, " if row == 0 else "") + ("%" if percent else "queries' worth") + root)
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
