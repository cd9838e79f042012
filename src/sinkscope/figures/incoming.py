"""Figure 1: incoming attention of every token over the steps, in one telling head and in the mean over heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import HEAT, VERMILLION, WIDE, WIDER, DrawnFigure, new_figure, number, plain, spread_out, whole_numbers
from sinkscope.figures.labels import tick_label, token_label

FEW_TOKENS = 48
ROOM_FOR_TOKENS = 40  # points above a map


@dataclass(frozen=True)
class _Panel:
    """One heat map: columns [step, key] in the unit drawn, and the column marked in each step, −1 for none."""

    one: Digest
    name: str
    title: str
    values: np.ndarray
    marked: np.ndarray
    layer: int | str
    head: int | str


def incoming_attention(digests: Sequence[Digest]) -> DrawnFigure:
    """Draws Figure 1; with several traces side by side, each row of panels on one colour scale."""
    percent = in_percent(digests)
    rows = [[_head_panel(one, percent) for one in digests], [_mean_panel(one, percent) for one in digests]]
    many = len(digests) > 1
    figure = new_figure(WIDER if many else WIDE, 6.6)
    grid = figure.subplots(2, len(digests), squeeze=False, sharex=True, sharey=True)
    unit = "% of attention" if percent else "queries' worth of attention"
    for row, panels in enumerate(rows):
        norm = _norm(panels, percent)
        for column, panel in enumerate(panels):
            image = _draw(grid[row, column], panel, norm, last=row == 1, first=column == 0)
        bar = figure.colorbar(image, ax=list(grid[row]), aspect=25, pad=0.01)
        bar.set_label(f"column, {unit}\n({_scale(norm)})")
    grid[0, 0].set_xlim(-0.5, max(len(one.canvas) for one in digests) - 0.5)
    grid[0, 0].set_ylim(max(one.steps for one in digests) - 0.5, -0.5)
    whole_numbers(grid[0, 0].xaxis, grid[0, 0].yaxis)
    _legend(figure)
    how = "above: the head whose main sink stands at most different positions; below: the mean over all heads"
    figure.suptitle(f"Incoming attention per token over steps\n{how}", x=0.01, ha="left")
    value = "percent_of_attention" if percent else "column_sum"
    header = ("model", "panel", "layer", "head", "step", "position", "token", value, "marked", "committed")
    numbers = [line for panels in rows for panel in panels for line in _lines(panel)]
    return DrawnFigure(
        "figure1-incoming-attention",
        titled("Figure 1: incoming attention per token over steps", digests),
        _caption(digests),
        figure,
        header,
        numbers,
    )


def in_percent(digests: Sequence[Digest]) -> bool:
    """Queries' worth where every query is added up; percent where only the newest are, or where models are compared."""
    return len(digests) > 1 or digests[0].causal


def as_drawn(one: Digest, columns: np.ndarray, percent: bool) -> np.ndarray:
    """Columns [step, …] in the unit drawn."""
    if not percent:
        return columns
    return columns * (100 / one.rows.reshape(-1, *[1] * (columns.ndim - 1)))


def counted(number_: int, noun: str) -> str:
    """1 move, 2 moves."""
    return f"{number_} {noun}" if number_ == 1 else f"{number_} {noun}s"


def source_of(one: Digest) -> str:
    """Whose attention is drawn, for titles."""
    return "from the 16 newest queries" if one.causal else "from all queries"


def _head_panel(one: Digest, percent: bool) -> _Panel:
    head = one.most_positions
    if head is None:
        layer, number_ = (int(at) for at in np.unravel_index(int(one.largest.argmax()), one.largest.shape))
        title = f"layer {layer} head {number_}: largest column; no head has a sink by Eq. 3"
    else:
        layer, number_ = head.layer, head.head
        title = f"layer {layer} head {number_}: main sink at {counted(one.places(head), 'position')}, {counted(head.moves, 'move')}"
    values = as_drawn(one, one.head_columns(layer, number_), percent)
    return _Panel(one, "head", title, values, one.main[:, layer, number_], layer, number_)


def _mean_panel(one: Digest, percent: bool) -> _Panel:
    title = f"mean over all {one.main.shape[1] * one.main.shape[2]} heads"
    return _Panel(one, "mean", title, as_drawn(one, one.mean, percent), np.nanargmax(one.mean, axis=-1), "all", "all")


def _norm(panels: Sequence[_Panel], percent: bool) -> Any:
    """A power scale on which equal shares for all tokens stand at a fifth, or a linear one where that says less."""
    from matplotlib.colors import PowerNorm

    most = max(float(np.nanmax(panel.values)) for panel in panels)
    equal = 100 / max(float(panel.one.lengths.max()) for panel in panels) if percent else 1.0
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
    head = f"{plain(one.heading)}, {source_of(one)}\n" if panel.name == "head" else ""
    axes.set_title(head + panel.title, y=1, pad=ROOM_FOR_TOKENS)
    if first:
        axes.set_ylabel("step")
    if last:
        axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
    _name_tokens(axes, panel, len(one.canvas))
    return image


def _name_tokens(axes: Any, panel: _Panel, end: int) -> None:
    """All tokens where they fit, else those that are marked longest."""
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
        places, [plain(tick_label(one.trace, int(one.canvas[int(place)]))) for place in places], rotation=90, fontsize="x-small"
    )
    above.tick_params(length=2, pad=1)
    above.spines[:].set_visible(False)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    hollow = {"linestyle": "none", "markerfacecolor": "none", "markersize": 4}
    handles = [
        Line2D([], [], marker="o", markeredgecolor=VERMILLION, label="main sink (Eq. 3)", **hollow),
        Line2D([], [], marker="D", markeredgecolor=VERMILLION, label="largest column of the mean", **hollow),
        Line2D(
            [],
            [],
            marker=".",
            color="white",
            markeredgecolor="black",
            markeredgewidth=0.4,
            linestyle="none",
            label="token committed in this step",
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)


def _lines(panel: _Panel) -> list[tuple[Any, ...]]:
    one = panel.one
    committed = {(step, position) for step, position, _ in one.written.tolist()}
    names: dict[int, str] = {-1: ""}
    lines = []
    for step, values in enumerate(panel.values):
        tokens = one.tokens[step].tolist()
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


def _caption(digests: Sequence[Digest]) -> str:
    parts = []
    for one in digests:
        head = one.most_positions
        which = (
            "no head has a sink by Eq. 3"
            if head is None
            else f"layer {head.layer} head {head.head} ({counted(one.places(head), 'position')}, {counted(head.moves, 'move')})"
        )
        parts.append(f"{one.label}: {which}")
    causal = (
        " For the autoregressive model the columns add up the 16 newest queries only, because a running sum can hardly move."
        if any(one.causal for one in digests)
        else ""
    )
    if len({one.causal for one in digests}) > 1:
        causal += " A few queries agree with each other more easily than hundreds do: compare places and movement, not strengths."
    return (
        "Columns of the attention map, one row a step: how much attention each token of the canvas receives. Above, the head whose "
        f"main sink stands at most different positions ({'; '.join(parts)}); below, the mean over all heads and layers, where heads "
        "that disagree blur one another. Tokens named above the maps are those of the final canvas; grey: not on the canvas yet."
        + causal
        + " What it does not show: whether the model needs this "
        "attention, and, where a sink follows the dots, whether it follows the tokens written or only their order from left to right."
    )
