"""Figure 1: how much attention each token receives over the steps, in one head and in the mean over all heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.style import (
    HEAT,
    VERMILLION,
    WIDE,
    WIDER,
    new_sheet,
    number,
    plain,
    spread_out,
    tick_label,
    token_label,
    whole_numbers,
)
from sinkscope.figures.subject import Subject

FEW_TOKENS = 48
ROOM_FOR_TOKENS = 40  # points above a map


@final
class IncomingAttention(Figure):
    """Above, the head whose main sink is at the most positions; below, the mean over all layers and heads."""

    name = "1"
    file = "figure1-incoming-attention"
    title = "Figure 1: incoming attention per token over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw a column of two maps for each trace, each row of maps on one colour scale."""
        percent = in_percent(subjects)
        rows = [[_head_panel(one, percent) for one in subjects], [_mean_panel(one, percent) for one in subjects]]
        many = len(subjects) > 1
        sheet = new_sheet(WIDER if many else WIDE, 6.6)
        grid = sheet.subplots(2, len(subjects), squeeze=False, sharex=True, sharey=True)
        unit = "% of attention" if percent else "queries' worth of attention"
        for row, panels in enumerate(rows):
            norm = _norm(panels, percent)
            for column, panel in enumerate(panels):
                image = _draw(grid[row, column], panel, norm, last=row == 1, first=column == 0)
            bar = sheet.colorbar(image, ax=list(grid[row]), aspect=25, pad=0.01)
            bar.set_label(f"column, {unit}\n({_scale(norm)})")
        grid[0, 0].set_xlim(-0.5, max(len(one.last_canvas) for one in subjects) - 0.5)
        grid[0, 0].set_ylim(max(one.summary.steps for one in subjects) - 0.5, -0.5)
        whole_numbers(grid[0, 0].xaxis, grid[0, 0].yaxis)
        _legend(sheet)
        how = "above: the head whose main sink is at the most positions; below: the mean over all heads"
        sheet.suptitle(f"Incoming attention per token over steps\n{how}", x=0.01, ha="left")
        value = "percent_of_attention" if percent else "column_sum"
        header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
        lines = [line for panels in rows for panel in panels for line in _lines(panel)]
        return self.drawn(subjects, sheet, _caption(subjects), header, lines)


@dataclass(frozen=True)
class _Panel:
    """One heat map: columns [step, key] in the unit drawn, and the column marked in each step, −1 for none."""

    one: Subject
    name: str
    title: str
    values: np.ndarray
    marked: np.ndarray
    layer: int | str
    head: int | str


def in_percent(subjects: Sequence[Subject]) -> bool:
    """Return whether percent are drawn: where only the newest queries are added up, or models are compared; else queries' worth."""
    return len(subjects) > 1 or subjects[0].summary.causal


def as_drawn(one: Subject, columns: np.ndarray, percent: bool) -> np.ndarray:
    """Return columns [step, …] in the unit drawn."""
    if not percent:
        return columns
    total = np.nansum(one.prompt.mean_columns, axis=-1)
    return columns * (100 / total.reshape(-1, *[1] * (columns.ndim - 1)))


def _head_panel(one: Subject, percent: bool) -> _Panel:
    head = one.highlights.most_positions
    if head is None:
        largest = one.highlights.largest
        layer, head_number = (int(at) for at in np.unravel_index(int(largest.argmax()), largest.shape))
        title = f"{one.head_name(layer, head_number)}: largest column; no head has a sink by Eq. 3"
    else:
        layer, head_number = head.layer, head.head
        title = f"{one.head_name(layer, head_number)}: main sink at {one.highlights.movement_text(head)}"
    values = as_drawn(one, one.head_columns(layer, head_number), percent)
    return _Panel(one, "head", title, values, one.main[:, layer, head_number], layer, head_number)


def _mean_panel(one: Subject, percent: bool) -> _Panel:
    mean = one.prompt.mean_columns
    title = f"mean over all {one.main[0].size} heads"
    return _Panel(one, "mean", title, as_drawn(one, mean, percent), np.nanargmax(mean, axis=-1), "all", "all")


def _norm(panels: Sequence[_Panel], percent: bool) -> Any:
    """Return a power scale that puts an equal share for every token at a fifth, or a linear one where that shows less."""
    from matplotlib.colors import PowerNorm

    most = max(float(np.nanmax(panel.values)) for panel in panels)
    equal = 100 / max(float(panel.one.prompt.canvas.lengths.max()) for panel in panels) if percent else 1.0
    return PowerNorm(float(np.clip(np.log(0.2) / np.log(equal / most), 0.3, 1)) if most > equal else 1.0, 0, most)


def _scale(norm: Any) -> str:
    return "linear colours" if norm.gamma == 1 else f"colours by power {norm.gamma:.2f}"


def _draw(axes: Any, panel: _Panel, norm: Any, last: bool, first: bool) -> Any:
    from matplotlib import colormaps

    one, (steps, width) = panel.one, panel.values.shape
    colours = colormaps[HEAT].with_extremes(bad="#e8e8e8")
    image = axes.imshow(panel.values, aspect="auto", cmap=colours, norm=norm)
    size = float(np.clip(150 / steps, 0.8, 3.2))
    commits = one.written
    dot = {"markerfacecolor": "white", "markeredgecolor": "black", "markeredgewidth": size / 8}
    axes.plot(commits[:, 1], commits[:, 0], linestyle="none", marker=".", markersize=size * 1.2, **dot)
    step = np.flatnonzero(panel.marked >= 0)
    style = {"marker": "o" if panel.name == "head" else "D", "markeredgecolor": VERMILLION}
    axes.plot(panel.marked[step], step, linestyle="none", markersize=size, markerfacecolor="none", markeredgewidth=size / 4, **style)
    if 0 < one.prompt_length < width:
        axes.axvline(one.prompt_length - 0.5, color="white", linewidth=0.6, linestyle=(0, (4, 3)))
    axes.spines[:].set_visible(False)
    head = f"{plain(one.heading)}, {one.queries_text}\n" if panel.name == "head" else ""
    axes.set_title(head + panel.title, y=1, pad=ROOM_FOR_TOKENS)
    if first:
        axes.set_ylabel("step")
    if last:
        axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
    _name_tokens(axes, panel, len(one.last_canvas))
    return image


def _name_tokens(axes: Any, panel: _Panel, end: int) -> None:
    """Name all tokens where they fit, else those that are marked longest."""
    one = panel.one
    if end <= FEW_TOKENS:
        places: list[float] = list(range(end))
    else:
        seen, counts = np.unique(panel.marked[panel.marked >= 0], return_counts=True)
        places = spread_out(seen[np.argsort(-counts, kind="stable")].tolist(), end / 45, 24)
    if not places:
        return
    above = axes.secondary_xaxis("top")
    above.set_xticks(
        places, [plain(tick_label(one.trace, int(one.last_canvas[int(place)]))) for place in places], rotation=90, fontsize="x-small"
    )
    above.tick_params(length=2, pad=1)
    above.spines[:].set_visible(False)


def _legend(sheet: Any) -> None:
    from matplotlib.lines import Line2D

    hollow = {"linestyle": "none", "markerfacecolor": "none", "markersize": 4}
    dot = {"linestyle": "none", "color": "white", "markeredgecolor": "black", "markeredgewidth": 0.4}
    handles = [
        Line2D([], [], marker="o", markeredgecolor=VERMILLION, label="main sink (Eq. 3)", **hollow),
        Line2D([], [], marker="D", markeredgecolor=VERMILLION, label="largest column of the mean", **hollow),
        Line2D([], [], marker=".", label="token committed in this step", **dot),
    ]
    sheet.legend(handles=handles, loc="outside lower center", ncols=3)


def _lines(panel: _Panel) -> list[tuple[Any, ...]]:
    one = panel.one
    committed = {(step, position) for step, position, _ in one.written.tolist()}
    names: dict[int, str] = {-1: ""}
    lines = []
    for step, values in enumerate(panel.values):
        tokens = one.prompt.canvas.tokens[step].tolist()
        for position in np.flatnonzero(~np.isnan(values)).tolist():
            token = tokens[position]
            if token not in names:
                names[token] = token_label(one.trace, token)
            marked, commit = int(panel.marked[step] == position), int((step, position) in committed)
            value = number(values[position])
            lines.append((one.label, panel.name, panel.layer, panel.head, step, position, names[token], value, marked, commit))
    width = panel.values.shape[1]
    for step, position, token in one.written.tolist():
        if position >= width or np.isnan(panel.values[step, position]):  # behind the canvas, where an autoregressive model writes
            lines.append((one.label, panel.name, panel.layer, panel.head, step, position, token_label(one.trace, token), "", 0, 1))
    return lines


def _caption(subjects: Sequence[Subject]) -> str:
    parts = []
    for one in subjects:
        head = one.highlights.most_positions
        which = "no head has a sink" if head is None else f"{one.head_name(head.layer, head.head)} ({one.highlights.movement_text(head)})"
        parts.append(f"{one.label}: {which}")
    causal = ""
    if any(one.summary.causal for one in subjects):
        causal = " For the autoregressive model only the 16 newest queries are added up, because a sum over all queries hardly moves."
    if len({one.summary.causal for one in subjects}) > 1:
        causal += " Sixteen queries agree more easily than hundreds do: compare where sinks are and how they move, not how strong they are."
    return (
        "How much attention each token of the canvas receives, one row per step. Above: the head whose main sink (its strongest token by "
        f"Eq. 3) is at the most positions ({'; '.join(parts)}). Below: the mean over all layers and heads, where heads that differ blur "
        f"each other. Tokens are named as in the final canvas; grey: not on the canvas yet.{causal} What it does not show: whether the "
        "model needs this attention, and whether a sink that follows the dots follows the tokens written or only their order from left "
        "to right."
    )
