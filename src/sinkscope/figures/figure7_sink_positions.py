"""Figure 7: where the main sink is in each step, in the heads in which it moves most and least."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.position_cut import Cut
from sinkscope.figures.style import (
    BLUE,
    GREEN,
    INK,
    VERMILLION,
    WIDE,
    WIDER,
    new_sheet,
    plain,
    spread_out,
    tick_label,
    token_label,
    whole_numbers,
)
from sinkscope.figures.subject import Subject, of_newest
from sinkscope.sinks import HeadMovement

ASKED_FOR = "asked for"
REASONS = {"most moves": "the most moves", "most positions": "the most positions", "most static": "the longest stay"}
"""Why heads are drawn, and how captions say it."""
LETTERS = 13  # of a legend, to an inch of a sheet


@final
class SinkPositions(Figure):
    """The heads with most moves, with most positions, and with the longest stay."""

    name = "7"
    file = "figure7-main-sink-position"
    title = "Figure 7: position of the main sink over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        """Draw position against step for each trace; parts of the prompt in which no main sink stands are left out."""
        many = len(subjects) > 1
        sheet = new_sheet(WIDER if many else WIDE, 4.6)
        grid = sheet.subplots(1, len(subjects), squeeze=False)[0]
        rows: list[tuple[Any, ...]] = []
        for axes, one in zip(grid, subjects, strict=True):
            series = chosen_heads(one)
            draw_positions(axes, one, series, int(LETTERS * sheet.get_figwidth() / len(subjects)))
            rows += [line for each in series for line in _lines(each)]
            rows += [
                (one.label, "committed", "", "", step, position, token_label(one.trace, token))
                for step, position, token in one.written.tolist()
            ]
        grid[0].set_ylabel("position in the canvas")
        sheet.suptitle("Position of the main sink over steps", x=0.01, ha="left")
        header = ("model", "series", "layer", "head", "step", "position", "token")
        return self.drawn(subjects, sheet, _caption(subjects), header, rows)


@dataclass(frozen=True)
class _Series:
    """One head that is drawn, and why."""

    one: Subject
    movement: HeadMovement
    why: str
    colour: str
    marker: str

    @property
    def reason(self) -> str:
        """Why it is drawn, behind its name; nothing where it was asked for."""
        return "" if self.why == ASKED_FOR else f": {self.why}"

    @property
    def main(self) -> np.ndarray:
        return self.one.main[:, self.movement.layer, self.movement.head]


def chosen_heads(one: Subject) -> list[_Series]:
    """Return the head whose main sink moves most often, the one with the most positions, and the most static one."""
    found = one.highlights
    if found.only is not None:
        return [_Series(one, found.only, ASKED_FOR, VERMILLION, "o")]
    roles: dict[HeadMovement, list[str]] = {}
    for head, why in (
        (found.most_moves, "most moves"),
        (found.most_positions, "most positions"),
        (found.most_static, "most static"),
    ):
        if head is not None and (head.moves or why != "most moves"):
            roles.setdefault(head, []).append(why)
    looks = ((VERMILLION, "o"), (BLUE, "^"), (GREEN, "s"))
    return [
        _Series(one, head, " and ".join(why), colour, marker)
        for (head, why), (colour, marker) in zip(roles.items(), looks, strict=False)
    ]


def draw_positions(axes: Any, one: Subject, series: Sequence[_Series], letters: int) -> None:
    """Draw position against step for some heads of a trace; ``letters`` fit into a line of a legend."""
    answer = range(one.prompt_length, len(one.last_canvas))
    cut = Cut.around([*answer, *(int(place) for each in series for place in each.main)], len(one.last_canvas))
    places = cut.places
    for first, end in cut.windows:
        last = min(end, one.prompt_length)
        if first < last:
            axes.axhspan(places[first] - 0.5, places[last - 1] + 0.5, color="#f0f0f0", linewidth=0, zorder=0)
            named = (first, last)
    if one.prompt_length and not np.isnan(places[: one.prompt_length]).all():
        middle = (places[named[0]] + places[named[1] - 1]) / 2
        axes.text(
            0.99,
            middle,
            "prompt",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize="small",
            color="#555555",
        )
    axes.plot(
        one.written[:, 0],
        places[one.written[:, 1]],
        linestyle="none",
        marker="x",
        markersize=2.4,
        markeredgewidth=0.6,
        color=INK,
        zorder=3,
        label="token committed",
    )
    for each in series:
        head = each.movement
        seen = f"({one.highlights.movement_text(head)})".replace(" ", "\N{NO-BREAK SPACE}")
        axes.plot(
            np.where(each.main >= 0, places[each.main], np.nan),
            color=each.colour,
            marker=each.marker,
            markersize=3,
            markerfacecolor="white",
            markeredgewidth=0.8,
            linewidth=0.9,
            label=textwrap.fill(f"{one.head_name(head.layer, head.head)}{each.reason} {seen}", letters - 8),
        )
    if not any((each.main >= 0).any() for each in series):
        axes.text(0.5, 0.5, "no sink by Eq. 3", transform=axes.transAxes, ha="center")
    axes.set_xlabel("step")
    axes.set_xlim(-0.5, one.summary.steps - 0.5)
    whole_numbers(axes.xaxis)
    top = float(np.nanmax(places))
    axes.set_ylim(-0.03 * top - 0.5, 1.03 * top + 0.5)
    ticks = cut.ticks()
    axes.set_yticks(places[ticks], [str(position) for position in ticks])
    cuts = f"; {cut.left_out} tokens of the prompt left out" if cut.left_out else ""
    axes.set_title(textwrap.fill(f"{plain(one.heading)}, {one.queries_text}{cuts}", letters - 10))
    _name_tokens(axes, one, series, places)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13))


def _name_tokens(axes: Any, one: Subject, series: Sequence[_Series], places: np.ndarray) -> None:
    """Name the positions where the sinks drawn are longest."""
    stood = np.concatenate([each.main[each.main >= 0] for each in series]) if series else np.zeros(0, int)
    if not len(stood):
        return
    seen, counts = np.unique(stood, return_counts=True)
    longest = {float(places[position]): int(position) for position in seen[np.argsort(-counts, kind="stable")].tolist()}
    kept = spread_out(list(longest), float(np.nanmax(places)) / 28, 16)
    right = axes.secondary_yaxis("right")
    names = [
        f"{longest[place]}: {plain(tick_label(one.trace, int(one.last_canvas[longest[place]])))}" for place in kept
    ]
    right.set_yticks(kept, names, fontsize="small")
    right.tick_params(length=2, pad=3)
    right.spines[:].set_visible(False)


def _lines(series: _Series) -> list[tuple[Any, ...]]:
    one, head, tokens = series.one, series.movement, series.one.prompt.canvas.tokens
    return [
        (
            one.label,
            series.why,
            head.layer,
            head.head,
            step,
            position,
            token_label(one.trace, int(tokens[step, position])),
        )
        if position >= 0
        else (one.label, series.why, head.layer, head.head, step, "", "")
        for step, position in enumerate(series.main.tolist())
    ]


def _caption(subjects: Sequence[Subject]) -> str:
    newest = of_newest(
        subjects, "the main sink is read from {queries}; in the first steps these are too few for Eq. 3 to hold."
    )
    drawn = {why for one in subjects for each in chosen_heads(one) for why in each.why.split(" and ")}
    kinds = [in_words for why, in_words in REASONS.items() if why in drawn]
    *before, last = kinds or ["a main sink, of which there are none"]
    which = f"the heads with {', '.join(before)}{' and ' if before else ''}{last}{subjects[0].where}"
    if subjects[0].highlights.only is not None:
        which = "the head that was asked for"
    extremes = (
        " these heads are the extremes (the table has the moves per head), and"
        if subjects[0].highlights.only is None
        else ""
    )
    return (
        f"Position of the main sink (the head's strongest token, where Eq. 3 holds) in each step, in {which}; a gap is "
        "a step without a sink. Long parts of the prompt without one of these main sinks are left out. Crosses: the "
        f"token committed in that step. Tokens on the right are named as in the final canvas.{newest} What it does not "
        f"show:{extremes} a sink that jumps to and fro may be two steady sinks of nearly equal strength."
    )
