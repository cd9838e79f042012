"""Single panels for notebooks and papers: each function returns a matplotlib figure; it draws into ``ax`` if given.

    sinkscope.figures.incoming(trace, layer=4, head=3)

A trace is an open one or its path. Layers and heads count from 0, negative ones from the end; those that a trace does
not have raise CallError. ``excess`` is ε of Eq. 3, in queries' worth of attention; ``ax`` are axes to draw into.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps, rcParams
from matplotlib.colors import PowerNorm
from matplotlib.patches import Rectangle

from sinkscope.errors import CallError
from sinkscope.figures import style
from sinkscope.figures.figure_main_sinks import LETTERS, chosen_heads, draw_positions, draw_strengths, strongest
from sinkscope.figures.subject import Subject, stays_of, subject_of
from sinkscope.sinks import main_sinks
from sinkscope.sinks.finding import check_reach, followed_sinks
from sinkscope.sinks.followed_columns import Followed
from sinkscope.traces import Trace
from sinkscope.traces.reading import as_trace
from sinkscope.traces.stored_maps import check_place, stored_map

GAMMA = 0.3  # so that an equal share of 1/256 is at a fifth of the scale
NAMED = 9
MOST_NAMES = 14
SATURATED = 0.95


def incoming(
    trace: Any, layer: int | None = None, head: int | None = None, *, ax: Any = None, excess: float = 3.0
) -> Any:
    """Draw the attention that each token receives over the steps, of a head with its main sink, a layer, or all."""
    one = subject_of(as_trace(trace), excess, place=(layer, head))
    found = Incoming.of(one, *one.place)
    with _axes(ax, 5.4, 3.4) as axes:
        title = f"{style.plain(one.label)}, {found.name}"
        image = draw_incoming(axes, found, norm_of([found.values]), found.cut(found.values), title)
        axes.set(xlabel="position in the canvas (dashed: end of the prompt)", ylabel="step")
        style.whole_numbers(axes.yaxis)
        label = "attention received, queries' worth"
        label += f"\nfrom {one.followed.queries_text}" if one.followed.newest else ""
        axes.figure.colorbar(image, ax=axes, aspect=24, pad=0.015, extend="max", label=label)
    return axes.figure


def sink_positions(
    trace: Any, layer: int | None = None, head: int | None = None, *, ax: Any = None, excess: float = 3.0
) -> Any:
    """Draw the position of a head's main sink over the steps, or those of Figure 7's heads, beside tokens written."""
    one = subject_of(as_trace(trace), excess, place=(layer, head))
    with _axes(ax, 5.4, 4.2) as axes:
        draw_positions(axes, one, chosen_heads(one), int(LETTERS * 5.4))
        axes.set_ylabel("position in the canvas")
    return axes.figure


def sink_strengths(trace: Any, *, ax: Any = None, excess: float = 3.0) -> Any:
    """Draw the main sink's column in every layer and head, mean over the steps that have one."""
    one = subject_of(as_trace(trace), excess)
    mean = one.summary.mean_strength
    with _axes(ax, 4.3, float(np.clip(1.8 + 0.38 * len(mean), 3.2, 6.6))) as axes:
        image = draw_strengths(axes, one, strongest([mean]))
        axes.set_ylabel("layer")
        label = "column of the main sink, queries' worth"
        axes.figure.colorbar(image, ax=axes, aspect=25, pad=0.01, label=label)
    return axes.figure


def token_column(trace: Any, layer: int, head: int, position: int, *, ax: Any = None) -> Any:
    """Draw the attention that one token receives in one head over the steps, and mark the step that wrote it."""
    one = subject_of(as_trace(trace), place=(layer, head))
    found = Incoming.of(one, *one.place)
    column, position = found.values[:, position], position % found.values.shape[1]
    with _axes(ax, 5.4, 2.6) as axes:
        name = f"“{style.plain(style.tick_label(one.trace, int(one.last_canvas[position])))}” ({position})"
        style.curve(axes, column, style.BLUE, "o", name)
        for step in one.written[one.written[:, 1] == position, 0].tolist():
            axes.axvline(step, color=style.VERMILLION, linestyle="--", linewidth=1, label="written in this step")
        axes.set(ylim=(0, None), xlim=(-0.5, len(column) - 0.5))
        axes.set(xlabel="step", ylabel="attention received,\nqueries' worth")
        style.whole_numbers(axes.xaxis)
        axes.set_title(f"{style.plain(one.label)}, {found.name}", loc="left")
        axes.legend()
    return axes.figure


def attention_map(
    trace: Any,
    step: int,
    layer: int,
    head: int,
    attention: Float[np.ndarray, "query key"] | None = None,
    *,
    ax: Any = None,
) -> Any:
    """Draw one map: ``recompute_map(…).attention``, or the one that is stored (``--keep-maps``); else CallError."""
    trace = as_trace(trace)
    step, layer, head = check_place(trace, step, layer, head)
    attention = stored_map(trace, step, layer, head) if attention is None else attention
    if attention is None:
        raise CallError(
            f"{trace.folder} holds no map of step {step}, layer {layer}, head {head}; pass one: "
            "sinkscope.recorder.attention_map.recompute_map(model, trace, step, layer, head).attention"
        )
    with _axes(ax, 4.2, 4.3) as axes:
        model = style.plain(style.model_label(trace.manifest))
        title = f"{model}:\nattention in step {step}, layer {layer}, head {head}"
        image = draw_map(axes, trace, step, attention, title)
        axes.set_xlabel("key (position; named: the keys with most attention)")
        axes.set_ylabel("query (position; dashed: end of the prompt)")
        scale_of_maps(axes.figure, image, axes, pad=0.02, shrink=0.85)
    return axes.figure


@contextmanager
def _axes(ax: Any, width: float, height: float) -> Iterator[Any]:
    """Give the user's axes, with the user's settings, or those of a new sheet."""
    if ax is not None:
        yield ax
        return
    with style.figure_style():
        yield style.new_sheet(width, height).subplots()


def draw_map(axes: Any, trace: Trace, step: int, attention: Float[np.ndarray, "query key"], title: str) -> Any:
    """Draw a map, queries downwards and keys to the right, name its strongest columns above, and return the image."""
    keys = attention.shape[1]
    seen = np.where(np.tri(*attention.shape, dtype=bool), attention, np.nan) if trace.causal else attention
    colours, norm = colormaps[style.HEAT].with_extremes(bad="#e8e8e8"), PowerNorm(GAMMA, 0, 1)
    image = axes.imshow(seen, cmap=colours, norm=norm, interpolation="nearest", aspect="equal")
    prompt = int(trace.manifest.get("prompt_length") or 0)
    if 0 < prompt < keys:
        line = {"color": "white", "linewidth": 0.6, "linestyle": (0, (4, 3))}
        axes.axvline(prompt - 0.5, **line)
        axes.axhline(prompt - 0.5, **line)
    axes.spines[:].set_visible(False)
    style.whole_numbers(axes.xaxis, axes.yaxis)
    axes.set_xlabel("key (position)")
    columns = attention.sum(axis=0)
    excess = columns - (columns.sum() - columns) / max(1, keys - 1)
    strongest = [key for key in np.argsort(-columns, kind="stable")[:NAMED].tolist() if excess[key] > 1]
    places = style.spread_out(strongest, keys / NAMED, NAMED)
    labels = (style.tick_label(trace, int(trace.tokens[step][int(at)]), 7) for at in places)
    names = [f"{int(at)}: {style.plain(label)}" for at, label in zip(places, labels, strict=True)]
    if names:
        above = axes.secondary_xaxis("top")
        above.set_xticks(places, names, rotation=90, fontsize="small")
        above.tick_params(length=2, pad=1)
        above.spines[:].set_visible(False)
    axes.set_title(title, y=1, pad=_room_above(names, 0.833 * rcParams["font.size"]))
    return image


def _room_above(names: Sequence[str], size: float) -> float:
    """Return the points that upright names take above a map, which the layout does not see."""
    return 6 + 0.62 * max(map(len, names), default=0) * size


def scale_of_maps(part: Any, image: Any, panels: Any, **more: Any) -> None:
    """Add the bar of colours of maps beside them."""
    label = f"share of a query's attention\n(colours by power {GAMMA})"
    part.colorbar(image, ax=panels, label=label, **{"aspect": 30, "pad": 0.01} | more)


class Incoming(NamedTuple):
    """Columns of one head, or the mean of several (``head`` is None); main: the head's main sink in each step."""

    subject: Subject
    layer: int | None
    head: int | None
    name: str
    values: Float[np.ndarray, "step key"]
    main: Int[np.ndarray, " step"] | None

    @classmethod
    def of(cls, one: Subject, layer: int | None, head: int | None, percent: bool = False) -> "Incoming":
        """Return the followed columns of a head, or their mean over a layer's or all heads: in queries' worth, or in
        percent of all attention that they hold.
        """
        trace, main, heads = one.trace, None, one.trace.heads * (len(one.trace.layers) if layer is None else 1)
        which = "the only head" if heads == 1 else f"{'all' if layer is None else 'the'} {heads} heads"
        name = f"mean over {which}{'' if layer is None else f' of layer {layer}'}"
        if layer is None:
            values = one.prompt.mean_columns
        elif head is None:
            values = np.mean([followed_columns(trace, layer, head) for head in range(heads)], axis=0)
        else:  # reads no other head
            place = slice(layer, layer + 1), slice(head, head + 1)
            found, there, ranks = followed_sinks(trace, one.threshold.excess, "queries", None, *place)
            total = np.nansum(trace.column_sums[:, layer, head], axis=-1)[:, None, None]
            check_reach(one.excess, "queries", total, found.shape[-1])
            name, values, main = one.head_name(layer, head), found[:, 0, 0], main_sinks(ranks, there)[:, 0, 0]
        if percent:
            total = np.nansum(values, axis=-1, keepdims=True)
            values = np.divide(100 * values, total, out=np.zeros_like(values), where=total > 0)
        return cls(one, layer, head, name, values, main)

    @property
    def stays(self) -> list[tuple[int, int, int]]:
        return [] if self.main is None else stays_of(self.main)

    def cut(self, values: Float[np.ndarray, "step key"]) -> style.Cut:
        """Return the cut around the answer, the main sinks and the three largest columns of a map."""
        first, end = self.subject.prompt_length, len(self.subject.last_canvas)
        strongest = np.argsort(-np.nan_to_num(values).mean(axis=0), kind="stable")[:3].tolist()
        return style.Cut.around([*range(first, end), *strongest, *(place for place, _, _ in self.stays)], end)


def followed_columns(trace: Trace, layer: int, head: int) -> Float[np.ndarray, "step key"]:
    """Return the columns of one head in which sinks are followed."""
    return Followed.of(trace).columns(trace, slice(layer, layer + 1), slice(head, head + 1))[:, 0, 0]


def norm_of(maps: Sequence[Float[np.ndarray, "step key"]], gamma: float = 1) -> Any:
    """Return colours for maps: from 0 to the largest column of a step, or less where single steps stand out."""
    tops = [np.nanmax(values, axis=-1) for values in maps]
    return PowerNorm(gamma, 0, max(float(np.quantile(top, SATURATED)) for top in tops), clip=False)


def draw_incoming(axes: Any, one: Incoming, norm: Any, cut: style.Cut, title: str, *, names: bool = True) -> Any:
    """Draw a map, outline the main sink in each step, name its tokens above, and return the image."""
    places, steps = cut.places, len(one.values)
    there = np.flatnonzero(~np.isnan(places[: one.values.shape[1]]))
    shown = np.full((steps, int(np.nanmax(places)) + 1), np.nan)
    shown[:, places[there].astype(int)] = one.values[:, there]
    for first, end in cut.windows:  # grey where nothing is drawn upon it: not on the canvas yet
        place = (places[first] - 0.5, -0.5)
        axes.add_patch(Rectangle(place, end - first, steps, facecolor="#e8e8e8", linewidth=0, zorder=-1))
        axes.add_patch(Rectangle(place, end - first, steps, fill=False, edgecolor="#999999", linewidth=0.4))
    colours = colormaps[style.LIGHT_HEAT].with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=norm, interpolation="nearest", origin="upper")
    at = places[np.minimum(one.subject.written[:, 1], cut.width - 1)]
    size = float(np.clip(120 / steps, 0.7, 2.2))
    dots: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": size, "markeredgewidth": 0}
    axes.plot(at, one.subject.written[:, 0], color=style.INK, **dots)
    for position, first, last in one.stays:
        place = (places[position] - 0.5, first - 0.5)
        axes.add_patch(Rectangle(place, 1, last - first + 1, fill=False, edgecolor=style.VERMILLION, linewidth=0.9))
    for (before, _, last), (after, first, _) in pairwise(one.stays):
        if first == last + 1:
            axes.plot(places[[before, after]], [last + 0.5] * 2, color=style.VERMILLION, linewidth=0.6)
    if 0 < one.subject.prompt_length < cut.width and not np.isnan(places[one.subject.prompt_length]):
        axes.axvline(places[one.subject.prompt_length] - 0.5, color=style.INK, linewidth=0.6, linestyle=(0, (4, 3)))
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.5, shown.shape[1] - 0.5), ylim=(steps - 0.5, -0.5))
    ticks = cut.ticks()
    axes.set_xticks(places[ticks], [str(position) for position in ticks])
    axes.set_title(title, loc="left", pad=_name_tokens(axes, one, cut) if names else None)
    return image


def _name_tokens(axes: Any, one: Incoming, cut: style.Cut) -> float:
    """Name tokens above the map, all or those where main sinks stay longest, and return the points that they take."""
    size = 0.8 * float(rcParams["font.size"])
    points = axes.get_window_extent().width * 72 / axes.figure.dpi
    most = min(MOST_NAMES, int(points / (1.2 * size)))
    stayed: Counter[int] = Counter()
    for position, first, last in one.stays:
        stayed[position] += last - first + 1
    shown = [position for position in range(len(one.subject.last_canvas)) if not np.isnan(cut.places[position])]
    if len(shown) > most:
        shown = sorted(stayed, key=lambda position: (-stayed[position], position))
    least = 1.2 * size * (float(np.nanmax(cut.places)) + 1) / points
    at = {float(cut.places[position]): position for position in shown}
    named = [at[place] for place in style.spread_out([*at], least * (1 - 1e-9), most)]
    labels = [style.tick_label(one.subject.trace, int(one.subject.last_canvas[position])) for position in named]
    if named:
        above = axes.secondary_xaxis("top")
        above.set_xticks(cut.places[named], [style.plain(label) for label in labels], rotation=90, fontsize=size)
        for position, label in zip(named, above.get_xticklabels(), strict=True):
            label.set_color(style.VERMILLION if position in stayed else style.INK)
        above.tick_params(length=0, pad=2)
        above.spines[:].set_visible(False)
    return _room_above(labels, size)
