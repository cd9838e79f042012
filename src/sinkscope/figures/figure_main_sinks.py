"""Figures 5 and 7: the main sink's strength in each layer and head, and its position over the steps."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from matplotlib import colormaps
from matplotlib.patches import Rectangle

from sinkscope.counts import counted
from sinkscope.figures import style
from sinkscope.figures.figure import OF_MOVES, RUNNING_SUMS, DrawnFigure, Figure, Row, of_newest
from sinkscope.figures.subject import Subject
from sinkscope.sinks import HeadMovement

MOST_CELLS_WITH_NUMBERS = 200


@final
class SinkStrengths(Figure):
    """Layer × head, mean over the steps that have a sink."""

    name = "5"
    file = "figure5-main-sink-strength"
    title = "Figure 5: strength of the main sink by layer and head"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        many = len(subjects) > 1
        most = strongest([one.summary.mean_strength for one in subjects])
        layers = max(one.summary.layers for one in subjects)
        height = float(np.clip(1.8 + 0.38 * layers, 3.2, 6.6))
        sheet = style.new_sheet(style.WIDER if many else style.WIDE * 0.8, height)
        grid = sheet.subplots(1, len(subjects), squeeze=False)[0]
        rows: list[Row] = []
        for axes, one in zip(grid, subjects, strict=True):
            image = draw_strengths(axes, one, most)
            for (layer, head), count in np.ndenumerate(one.summary.steps_with_sink):
                mean = style.number(one.summary.mean_strength[layer, head]) if count else ""
                rows.append((one.label, layer, head, mean, int(count), one.summary.steps))
        label = "column sum of the main sink,\nqueries' worth of attention"
        sheet.colorbar(image, ax=list(grid), aspect=25, pad=0.01, label=label)
        grid[0].set_ylabel("layer")
        shares = np.concatenate([one.summary.steps_with_sink.ravel() / one.summary.steps for one in subjects])
        signs = ["hatched: a sink in fewer than half of the steps"] * bool(((shares > 0) & (shares < 0.5)).any())
        if signs := [*signs, *["grey: a sink in no step"] * bool((shares == 0).any())]:
            sheet.supxlabel("; ".join(signs), fontsize="small")
        parts = []
        for one in subjects:
            found = one.summary.steps_with_sink / one.summary.steps
            some = f"{(found > 0).sum()} of {found.size} heads have a sink in some step"
            parts.append(f"{one.label}: {some}, {(found >= 0.5).sum()} in half of the steps or more")
        style.say(sheet, *parts)
        caption = (
            "Column sum of the main sink (the head's strongest sink), averaged over the steps in "
            f"which the head has one; layer 0 is next to the embedding.{of_newest(subjects, f'{RUNNING_SUMS}.')} What "
            "it does not show: the other sinks of a head, and whether the main sink is the same token throughout."
        )
        header = ("model", "layer", "head", "mean_main_sink_column_sum", "steps_with_main_sink", "steps")
        return self.drawn(subjects, sheet, caption, header, rows)


def strongest(means: Sequence[np.ndarray]) -> float:
    """Return the end of the colour scale: the largest mean; 1 where there is none."""
    return max((float(np.nanmax(mean)) for mean in means if not np.isnan(mean).all()), default=1.0)


def draw_strengths(axes: Any, one: Subject, most: float) -> Any:
    """Draw layer × head, hatched where a head has a sink in few steps, and return the image."""
    mean, share = one.summary.mean_strength, one.summary.steps_with_sink / one.summary.steps
    colours = colormaps[style.HEAT].with_extremes(bad="#e8e8e8")
    image = axes.imshow(mean, aspect="auto", origin="lower", cmap=colours, vmin=0, vmax=most)
    for (layer, head), strength in np.ndenumerate(mean):
        box, place = None, (head - 0.5, layer - 0.5)
        if 0 < share[layer, head] < 0.5:
            axes.add_patch(Rectangle(place, 1, 1, fill=False, hatch="////", edgecolor="#b0b0b0", linewidth=0))
            box = {"facecolor": colours(strength / most), "edgecolor": "none", "pad": 0.8}
        if mean.size <= MOST_CELLS_WITH_NUMBERS:
            look = {"color": "white" if strength < 0.6 * most else "black", "fontsize": "small", "bbox": box}
            axes.text(head, layer, "" if np.isnan(strength) else f"{strength:.1f}", ha="center", va="center", **look)
    axes.spines[:].set_visible(False)
    for axis, count in ((axes.yaxis, mean.shape[0]), (axes.xaxis, mean.shape[1])):
        axis.set_ticks(range(0, count, 1 if count <= 16 else 4))
    axes.set_xlabel("head")
    queries = "running sums over all queries" if one.followed.newest else "sums over all queries"
    axes.set_title(f"{style.plain(one.heading)},\n{counted(one.summary.steps, 'step')}, {queries}")
    return image


ASKED_FOR = "asked for"
LOOKS = ((style.VERMILLION, "o"), (style.BLUE, "^"), (style.GREEN, "s"))
LETTERS = 13  # of a legend, to an inch of a sheet


@final
class SinkPositions(Figure):
    """The clearest head, the one with most moves, and the one with the longest stay."""

    name = "7"
    file = "figure7-main-sink-position"
    title = "Figure 7: position of the main sink over steps"

    def draw(self, subjects: Sequence[Subject]) -> DrawnFigure:
        many = len(subjects) > 1
        sheet = style.new_sheet(style.WIDER if many else style.WIDE, 4.6)
        grid = sheet.subplots(1, len(subjects), squeeze=False)[0]
        rows: list[Row] = []
        for axes, one in zip(grid, subjects, strict=True):
            heads = chosen_heads(one)
            draw_positions(axes, one, heads, int(LETTERS * sheet.get_figwidth() / len(subjects)))
            for head, why in heads.items():
                for step, position in enumerate(one.main[:, head.layer, head.head].tolist()):
                    token = style.token_label(one.trace, int(one.prompt.canvas.tokens[step, position]))
                    at = (position, token) if position >= 0 else ("", "")
                    rows.append((one.label, why, head.layer, head.head, step, *at))
            for step, position, token in one.written.tolist():
                rows.append((one.label, "committed", "", "", step, position, style.token_label(one.trace, token)))
        grid[0].set_ylabel("position in the canvas")
        style.say(sheet, *(f"{one.label}: {one.headline}" for one in subjects))
        caption = (
            "Position of the main sink (the head's strongest sink) in each step; a gap is a step "
            "without a sink, a cross the token committed. Long parts of the prompt without one of these are left "
            f"out.{of_newest(subjects, 'few of {queries} are there in the first steps.')} {OF_MOVES} What it does not "
            "show: the other heads."
        )
        header = ("model", "series", "layer", "head", "step", "position", "token")
        return self.drawn(subjects, sheet, caption, header, rows)


def chosen_heads(one: Subject) -> dict[HeadMovement, str]:
    """Return, with reasons, the clearest head, that with most moves (beyond chance), that with the longest stay."""
    if one.only is not None:
        return {one.only: ASKED_FOR}
    found = [(max(one.moving, key=lambda head: head.moves), "most moves")] if one.moving else []
    found += [(one.clearest, "clearest move" if one.clearest in one.moving else "strongest")]
    reasons: dict[HeadMovement, list[str]] = {}
    for head, why in [*found, (one.most_static, "longest stay")]:
        if head is not None:
            reasons.setdefault(head, []).append(why)
    return {head: " and ".join(why) for head, why in reasons.items()}


def draw_positions(axes: Any, one: Subject, heads: dict[HeadMovement, str], letters: int) -> None:
    """Draw position against step for some heads of a trace; ``letters`` fit into a line of a legend."""
    answer = range(one.prompt_length, len(one.last_canvas))
    mains = list(map(one.of_head, heads))
    stood = Counter(position for main in mains for position in main.tolist() if position >= 0)
    cut = style.Cut.around([*answer, *stood], len(one.last_canvas))
    places = cut.places
    in_prompt = [(first, min(end, one.prompt_length)) for first, end in cut.windows if first < one.prompt_length]
    for first, last in in_prompt:
        axes.axhspan(places[first] - 0.5, places[last - 1] + 0.5, color="#f0f0f0", linewidth=0, zorder=0)
    if in_prompt:
        middle = (places[in_prompt[-1][0]] + places[in_prompt[-1][1] - 1]) / 2
        look: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": "small", "color": "#555555"}
        axes.text(0.99, middle, "prompt", transform=axes.get_yaxis_transform(), **look)
    cross: dict[str, Any] = {
        "linestyle": "none",
        "markersize": 2.4,
        "markeredgewidth": 0.6,
        "color": style.INK,
        "zorder": 3,
    }
    axes.plot(one.written[:, 0], places[one.written[:, 1]], marker="x", label="token committed", **cross)
    for (head, why), main, (colour, marker) in zip(heads.items(), mains, LOOKS, strict=False):
        reason = "" if why == ASKED_FOR else f": {why}"
        seen = f"({counted(head.moves, 'move')}, {counted(head.swaps, 'change')} of rank)"
        seen = seen.replace(" ", "\N{NO-BREAK SPACE}")
        label = textwrap.fill(f"{one.head_name(head.layer, head.head)}{reason} {seen}", letters - 8)
        look = {"markerfacecolor": "white", "markeredgewidth": 0.8, "linewidth": 0.9}
        style.curve(axes, np.where(main >= 0, places[main], np.nan), colour, marker, label, 3, **look)
    if not stood:
        axes.text(0.5, 0.5, "no sink", transform=axes.transAxes, ha="center")
    axes.set(xlabel="step", xlim=(-0.5, one.summary.steps - 0.5))
    style.whole_numbers(axes.xaxis)
    top = float(np.nanmax(places))
    axes.set_ylim(-0.03 * top - 0.5, 1.03 * top + 0.5)
    ticks = cut.ticks()
    axes.set_yticks(places[ticks], [str(position) for position in ticks])
    axes.set_title(textwrap.fill(f"{style.plain(one.heading)}, from {one.followed.queries_text}", letters - 10))
    if stood:  # name the positions where the sinks drawn are longest
        longest = {float(places[at]): at for at in sorted(stood, key=lambda at: (-stood[at], at))}
        kept = style.spread_out(list(longest), top / 28, 16)
        right = axes.secondary_yaxis("right")
        names = [
            f"{longest[place]}: {style.plain(style.tick_label(one.trace, int(one.last_canvas[longest[place]])))}"
            for place in kept
        ]
        right.set_yticks(kept, names, fontsize="small")
        right.tick_params(length=2, pad=3)
        right.spines[:].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13))
