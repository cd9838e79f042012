"""Figure 7: where the main sink stands in each step, in the heads in which it moves most and least."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.figures.digest import Digest, titled
from sinkscope.figures.figure import BLUE, GREEN, INK, VERMILLION, WIDE, WIDER, DrawnFigure, new_figure, plain, spread_out, whole_numbers
from sinkscope.figures.incoming import counted, source_of
from sinkscope.figures.labels import tick_label, token_label

LETTERS = 13  # of a legend, to an inch of a sheet


@dataclass(frozen=True)
class _Series:
    one: Digest
    layer: int
    head: int
    why: str
    colour: str
    marker: str

    @property
    def main(self) -> np.ndarray:
        return self.one.main[:, self.layer, self.head]


def main_sink_positions(digests: Sequence[Digest]) -> DrawnFigure:
    """Draws Figure 7; with several traces side by side, on the same axes."""
    many = len(digests) > 1
    figure = new_figure(WIDER if many else WIDE, 4.6)
    grid = figure.subplots(1, len(digests), squeeze=False, sharex=True, sharey=True)[0]
    rows: list[tuple[Any, ...]] = []
    highest = max(len(one.canvas) for one in digests)
    for axes, one in zip(grid, digests, strict=True):
        series = chosen_heads(one)
        _draw(axes, one, series, highest, int(LETTERS * figure.get_figwidth() / len(digests)))
        rows += [line for each in series for line in _lines(each)]
        rows += [
            (one.label, "committed", "", "", step, position, token_label(one.trace, token))
            for step, position, token in one.written.tolist()
        ]
    grid[0].set_ylabel("position in the canvas")
    grid[0].set_xlim(-0.5, max(one.steps for one in digests) - 0.5)
    whole_numbers(grid[0].xaxis, grid[0].yaxis)
    grid[0].set_ylim(-0.02 * highest, 1.02 * highest)
    figure.suptitle("Position of the main sink over steps", x=0.01, ha="left")
    header = ("model", "series", "layer", "head", "step", "position", "token")
    return DrawnFigure(
        "figure7-main-sink-position",
        titled("Figure 7: position of the main sink over steps", digests),
        _caption(digests),
        figure,
        header,
        rows,
    )


def chosen_heads(one: Digest) -> list[_Series]:
    """The head whose main sink moves most often, the one where it stands at most positions, and the most static one."""
    roles: dict[tuple[int, int], list[str]] = {}
    for head, why in ((one.most_moves, "most moves"), (one.most_positions, "most positions"), (one.most_static, "most static")):
        if head is not None and (head.moves or why != "most moves"):
            roles.setdefault((head.layer, head.head), []).append(why)
    looks = ((VERMILLION, "o"), (BLUE, "^"), (GREEN, "s"))
    return [
        _Series(one, layer, head, " and ".join(why), colour, marker)
        for ((layer, head), why), (colour, marker) in zip(roles.items(), looks, strict=False)
    ]


def _draw(axes: Any, one: Digest, series: Sequence[_Series], highest: int, letters: int) -> None:
    if one.prompt_length:
        axes.axhspan(0, one.prompt_length - 0.5, color="#f0f0f0", linewidth=0, zorder=0)
        axes.text(
            0.99,
            one.prompt_length / 2,
            "prompt",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize="small",
            color="#555555",
        )
    axes.plot(
        one.written[:, 0],
        one.written[:, 1],
        linestyle="none",
        marker="x",
        markersize=2.4,
        markeredgewidth=0.6,
        color=INK,
        zorder=3,
        label="token committed",
    )
    for each in series:
        position = np.where(each.main >= 0, each.main, np.nan)
        head = next(head for head in one.heads if (head.layer, head.head) == (each.layer, each.head))
        seen = f"({counted(one.places(head), 'position')}, {counted(head.moves, 'move')})".replace(" ", "\N{NO-BREAK SPACE}")
        label = f"layer {each.layer} head {each.head}: {each.why} {seen}"
        axes.plot(
            position,
            color=each.colour,
            marker=each.marker,
            markersize=3,
            markerfacecolor="white",
            markeredgewidth=0.8,
            linewidth=0.9,
            label=textwrap.fill(label, letters - 8),
        )
    if not series:
        axes.text(0.5, 0.5, "no head has a sink by Eq. 3", transform=axes.transAxes, ha="center")
    axes.set_xlabel("step")
    axes.set_title(textwrap.fill(f"{plain(one.heading)}, {source_of(one)}", letters - 14))
    _name_tokens(axes, one, series, highest)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13))


def _name_tokens(axes: Any, one: Digest, series: Sequence[_Series], highest: int) -> None:
    """Names the positions where the sinks drawn stand longest."""
    stood = np.concatenate([each.main[each.main >= 0] for each in series]) if series else np.zeros(0, int)
    if not len(stood):
        return
    places, counts = np.unique(stood, return_counts=True)
    kept = spread_out(places[np.argsort(-counts, kind="stable")].tolist(), highest / 28, 16)
    right = axes.secondary_yaxis("right")
    right.set_yticks(
        kept, [f"{plain(tick_label(one.trace, int(one.canvas[int(place)])))} {int(place)}" for place in kept], fontsize="x-small"
    )
    right.tick_params(length=2, pad=1)
    right.spines[:].set_visible(False)


def _lines(series: _Series) -> list[tuple[Any, ...]]:
    one = series.one
    return [
        (one.label, series.why, series.layer, series.head, step, position, token_label(one.trace, int(one.tokens[step, position])))
        if position >= 0
        else (one.label, series.why, series.layer, series.head, step, "", "")
        for step, position in enumerate(series.main.tolist())
    ]


def _caption(digests: Sequence[Digest]) -> str:
    causal = (
        " For the autoregressive model the main sink is read from the 16 newest queries; in the first steps there are too few of them "
        "for Eq. 3 to hold."
        if any(one.causal for one in digests)
        else ""
    )
    return (
        "Position of the main sink in each step, in the heads with most moves, with most positions and with the longest stay; gaps are "
        "steps in which Eq. 3 holds for no token. Crosses: the token committed in that step. Tokens named on the right are those of the "
        "final canvas." + causal + " What it "
        "does not show: these heads are the extremes, not the rule (see the moves per head in the table), and a sink that jumps to and fro "
        "between two positions may be two steady sinks of nearly equal strength."
    )
