"""Draws the attention that tokens receive in one head or several, as a map of step and position."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError
from sinkscope.figures.style import INK, LIGHT_HEAT, VERMILLION, plain, spread_out, tick_label
from sinkscope.sinks import main_sinks
from sinkscope.sinks.definition import check_excess
from sinkscope.sinks.finding import check_reach, followed_sinks
from sinkscope.sinks.followed_columns import Followed
from sinkscope.traces import Trace
from sinkscope.traces.stored_maps import check_place

Place = tuple[int | None, int | None]
MOST_NAMES = 14
SATURATED = 0.95
MARGIN, LEAST_CUT, GAP = 4, 30, 3
"""Positions drawn beside each one that is kept, the fewest that are left out, and the room for these on the axis."""


@dataclass(frozen=True)
class Cut:
    """Which positions of a canvas are drawn: the windows (first, end); long stretches with nothing to show are not."""

    windows: tuple[tuple[int, int], ...]
    width: int

    @classmethod
    def around(cls, kept: Iterable[int], width: int) -> "Cut":
        windows = [[0, 0]]
        for position in sorted({position for position in kept if 0 <= position < width}) or [0]:
            if position - MARGIN - windows[-1][1] < LEAST_CUT:
                windows[-1][1] = position + MARGIN + 1
            else:
                windows.append([position - MARGIN, position + MARGIN + 1])
        windows[-1][1] = width if width - windows[-1][1] < LEAST_CUT else windows[-1][1]
        return cls(tuple((first, min(end, width)) for first, end in windows if end), width)

    @cached_property
    def places(self) -> Float[np.ndarray, " position"]:
        """Where each position is drawn; NaN where it is left out."""
        places, at = np.full(self.width, np.nan), 0.0
        for first, end in self.windows:
            places[first:end] = at + np.arange(end - first)
            at += end - first + GAP
        return places

    def ticks(self) -> list[int]:
        """Return positions for ticks: the first of each window, then round ones."""
        places, most = self.places, 9
        drawn = np.nanmax(places) + 1
        round_steps = (one * 10**power for power in count() for one in (1, 2, 5))
        step = next(one for one in round_steps if drawn / one <= most)
        wanted = [*(first for first, _ in self.windows), *range(0, self.width, step)]
        there = {float(places[position]): position for position in wanted if not np.isnan(places[position])}
        return [there[place] for place in sorted(spread_out([*there], drawn / (1.6 * most), 2 * most))]


@dataclass(frozen=True, eq=False)
class Incoming:
    """Columns of one head, or a mean; main: its main sink in each step (−1: none), None for a mean; written: (step,
    position, token) of every commit; canvas: the tokens after the last step.
    """

    trace: Trace = field(repr=False)
    name: str
    values: Float[np.ndarray, "step key"]
    main: Int[np.ndarray, " step"] | None
    written: Int[np.ndarray, "commit 3"]
    canvas: Int[np.ndarray, " position"]
    prompt_length: int

    @classmethod
    def of(cls, trace: Trace, layer: int | None, head: int | None, excess: float = 3.0) -> "Incoming":
        """Return the followed columns of a head, or their mean over a layer's or all heads; only these are read."""
        check_excess(float(excess), "queries")
        layer, head = check_head(trace, (layer, head))
        written = trace.written[:] if "written" in trace.tensors else None
        commits = commits_of(written, trace.tokens[:], trace.manifest.get("mask_id"))
        if layer is not None and head is not None:
            found = followed_sinks(trace, excess, "queries", None, slice(layer, layer + 1), slice(head, head + 1))
            values, main = found[0][:, 0, 0], main_sinks(found[2], found[1])[:, 0, 0]
            total = np.nansum(trace.column_sums[:, layer, head], axis=-1)[:, None, None]
            check_reach(excess, "queries", total, values.shape[-1])
            name = f"layer {layer} head {head}"
        else:
            layers = range(len(trace.layers)) if layer is None else [layer]
            heads = len(layers) * trace.heads
            columns = [followed_columns(trace, one, number) for one in layers for number in range(trace.heads)]
            values, main, name = np.add.reduce(columns) / heads, None, mean_name(heads, layer)
        canvas = last_canvas_of(trace.tokens[:], commits)
        return cls(trace, name, values, main, commits, canvas, int(trace.manifest.get("prompt_length") or 0))

    @property
    def stays(self) -> list[tuple[int, int, int]]:
        return [] if self.main is None else stays_of(self.main)

    def cut(self, values: Float[np.ndarray, "step key"]) -> Cut:
        """Return the cut around the answer, the main sinks and the three largest columns of a map."""
        answer = range(self.prompt_length, len(self.canvas))
        strongest = np.argsort(-np.nan_to_num(values).mean(axis=0), kind="stable")[:3].tolist()
        return Cut.around([*answer, *strongest, *(position for position, _, _ in self.stays)], len(self.canvas))


def stays_of(main: Int[np.ndarray, " step"]) -> list[tuple[int, int, int]]:
    """Return (position, first step, last step) of a head's main sink, for each time that it stays in one place."""
    edges = (np.flatnonzero(np.diff(main)) + 1).tolist()
    bounds = zip([0, *edges], [*edges, len(main)], strict=True)
    return [(int(main[first]), first, end - 1) for first, end in bounds if main[first] >= 0]


def mean_name(heads: int, layer: int | None) -> str:
    """Return in words which heads a mean is over: all, or those of a layer."""
    which = "the only head" if heads == 1 else f"{'all' if layer is None else 'the'} {heads} heads"
    return f"mean over {which}{'' if layer is None else f' of layer {layer}'}"


def check_head(trace: Trace, place: Place) -> Place:
    """Return a layer and a head of a trace, counted from the start; raise CallError for those that it does not have."""
    layer, head = place
    if layer is None and head is not None:
        raise CallError(f"head: expected a layer with it, found head {head} alone")
    if layer is None:
        return place
    _, layer, first = check_place(trace, 0, layer, 0 if head is None else head)
    return layer, None if head is None else first


def followed_columns(trace: Trace, layer: int, head: int) -> Float[np.ndarray, "step key"]:
    """Return the columns of one head in which sinks are followed."""
    return Followed.of(trace).columns(trace, slice(layer, layer + 1), slice(head, head + 1))[:, 0, 0]


def commits_of(
    written: Int[np.ndarray, "step position"] | None, tokens: Int[np.ndarray, "step position"], mask_id: int | None
) -> Int[np.ndarray, "commit 3"]:
    """Return (step, position, token) of every commit, by the canvases where none are recorded; remasking is none."""
    if written is None:
        written = np.where(tokens[1:] != tokens[:-1], tokens[1:], -1)
    step, position = np.nonzero((written >= 0) & (written != (-1 if mask_id is None else mask_id)))
    return np.stack([step, position, written[step, position]], axis=-1)


def last_canvas_of(
    tokens: Int[np.ndarray, "step position"], commits: Int[np.ndarray, "commit 3"]
) -> Int[np.ndarray, " position"]:
    """Return the tokens after the last step, with all commits."""
    width = max(tokens.shape[1], int(commits[:, 1].max(initial=-1)) + 1)
    canvas = np.full(width, -1)
    canvas[: tokens.shape[1]] = tokens[-1]
    last = commits[commits[:, 0] == len(tokens) - 1]  # earlier ones stand on the canvas, unless masked again
    canvas[last[:, 1]] = last[:, 2]
    return canvas


def norm_of(maps: Sequence[Float[np.ndarray, "step key"]], gamma: float = 1) -> Any:
    """Return colours for maps: from 0 to the largest column of a step, or less where single steps stand out."""
    from matplotlib.colors import PowerNorm

    tops = [np.nanmax(values, axis=-1) for values in maps]
    return PowerNorm(gamma, 0, max(float(np.quantile(top, SATURATED)) for top in tops), clip=False)


def draw_incoming(axes: Any, one: Incoming, norm: Any, cut: Cut, title: str, *, names: bool = True) -> Any:
    """Draw a map, outline the main sink in each step, name its tokens above, and return the image."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    places, steps = cut.places, len(one.values)
    there = np.flatnonzero(~np.isnan(places[: one.values.shape[1]]))
    shown = np.full((steps, int(np.nanmax(places)) + 1), np.nan)
    shown[:, places[there].astype(int)] = one.values[:, there]
    for first, end in cut.windows:  # grey where nothing is drawn upon it: not on the canvas yet
        place = (places[first] - 0.5, -0.5)
        axes.add_patch(Rectangle(place, end - first, steps, facecolor="#e8e8e8", linewidth=0, zorder=-1))
        axes.add_patch(Rectangle(place, end - first, steps, fill=False, edgecolor="#999999", linewidth=0.4))
    colours = colormaps[LIGHT_HEAT].with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=norm, interpolation="nearest", origin="upper")
    at = places[np.minimum(one.written[:, 1], cut.width - 1)]
    size = float(np.clip(120 / steps, 0.7, 2.2))
    axes.plot(at, one.written[:, 0], linestyle="none", marker=".", markersize=size, color=INK, markeredgewidth=0)
    for position, first, last in one.stays:
        place = (places[position] - 0.5, first - 0.5)
        axes.add_patch(Rectangle(place, 1, last - first + 1, fill=False, edgecolor=VERMILLION, linewidth=0.9))
    for (before, _, last), (after, first, _) in pairwise(one.stays):
        if first == last + 1:
            axes.plot(places[[before, after]], [last + 0.5] * 2, color=VERMILLION, linewidth=0.6)
    if 0 < one.prompt_length < cut.width and not np.isnan(places[one.prompt_length]):
        axes.axvline(places[one.prompt_length] - 0.5, color=INK, linewidth=0.6, linestyle=(0, (4, 3)))
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, shown.shape[1] - 0.5)
    axes.set_ylim(steps - 0.5, -0.5)
    ticks = cut.ticks()
    axes.set_xticks(places[ticks], [str(position) for position in ticks])
    axes.set_title(title, loc="left", pad=_name_tokens(axes, one, cut) if names else None)
    return image


def _name_tokens(axes: Any, one: Incoming, cut: Cut) -> float:
    """Name tokens above the map, all or those where main sinks stay longest, and return the points that they take."""
    from matplotlib import rcParams

    size = 0.8 * float(rcParams["font.size"])
    points = axes.get_window_extent().width * 72 / axes.figure.dpi
    most = min(MOST_NAMES, int(points / (1.2 * size)))
    stayed: Counter[int] = Counter()
    for position, first, last in one.stays:
        stayed[position] += last - first + 1
    shown = [position for position in range(len(one.canvas)) if not np.isnan(cut.places[position])]
    if len(shown) > most:
        shown = sorted(stayed, key=lambda position: (-stayed[position], position))
    least = 1.2 * size * (float(np.nanmax(cut.places)) + 1) / points
    at = {float(cut.places[position]): position for position in shown}
    named = [at[place] for place in spread_out([*at], least * (1 - 1e-9), most)]
    labels = [tick_label(one.trace, int(one.canvas[position])) for position in named]
    if named:
        above = axes.secondary_xaxis("top")
        above.set_xticks(cut.places[named], [plain(label) for label in labels], rotation=90, fontsize=size)
        for position, label in zip(named, above.get_xticklabels(), strict=True):
            label.set_color(VERMILLION if position in stayed else INK)
        above.tick_params(length=0, pad=2)
        above.spines[:].set_visible(False)
    return 6 + 0.62 * max(map(len, labels), default=0) * size
