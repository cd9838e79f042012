"""Single panels for notebooks and papers: each function returns a matplotlib figure; it draws into ``ax`` if given.

    sinkscope.figures.incoming(trace, layer=4, head=3)

A trace is an open one or its path. Layers and heads count from 0, negative ones from the end; those that a trace does
not have raise CallError. ``excess`` is ε of Eq. 3, in queries' worth of attention; ``ax`` are axes to draw into.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.errors import CallError
from sinkscope.figures.figure_main_sinks import LETTERS, chosen_heads, draw_positions, draw_strengths, strongest
from sinkscope.figures.incoming_attention import Incoming, check_head, draw_incoming, norm_of
from sinkscope.figures.style import (
    BLUE,
    HEAT,
    VERMILLION,
    curve,
    figure_style,
    model_label,
    new_sheet,
    plain,
    spread_out,
    tick_label,
    whole_numbers,
)
from sinkscope.figures.subject import subject_of
from sinkscope.sinks.followed_columns import Followed
from sinkscope.traces import Trace
from sinkscope.traces.reading import as_trace
from sinkscope.traces.stored_maps import check_place, stored_map

GAMMA = 0.3  # so that an equal share of 1/256 is at a fifth of the scale
NAMED = 9
ROOM_FOR_TOKENS = 7.4  # lines of text above a map


def incoming(
    trace: Any, layer: int | None = None, head: int | None = None, *, ax: Any = None, excess: float = 3.0
) -> Any:
    """Draw the attention that each token receives over the steps, of a head with its main sink, a layer, or all."""
    trace = as_trace(trace)
    one = Incoming.of(trace, layer, head, excess)
    with _axes(ax, 5.4, 3.4) as axes:
        title = f"{plain(model_label(trace.manifest))}, {one.name}"
        image = draw_incoming(axes, one, norm_of([one.values]), one.cut(one.values), title)
        axes.set_xlabel("position in the canvas (dashed: end of the prompt)")
        axes.set_ylabel("step")
        whole_numbers(axes.yaxis)
        followed = Followed.of(trace)
        bar = axes.figure.colorbar(image, ax=axes, aspect=24, pad=0.015, extend="max")
        newest = f"\nfrom {followed.queries_text}" if followed.newest else ""
        bar.set_label(f"attention received, queries' worth{newest}")
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
        axes.figure.colorbar(image, ax=axes, aspect=25, pad=0.01).set_label("column of the main sink, queries' worth")
    return axes.figure


def token_column(trace: Any, layer: int, head: int, position: int, *, ax: Any = None) -> Any:
    """Draw the attention that one token receives in one head over the steps, and mark the step that wrote it."""
    trace = as_trace(trace)
    place = check_head(trace, (layer, head))
    one = Incoming.of(trace, *place)
    column, position = one.values[:, position], position % one.values.shape[1]
    with _axes(ax, 5.4, 2.6) as axes:
        name = f"“{plain(tick_label(trace, int(one.canvas[position])))}” ({position})"
        curve(axes, column, BLUE, "o", name)
        for step in one.written[one.written[:, 1] == position, 0].tolist():
            axes.axvline(step, color=VERMILLION, linestyle="--", linewidth=1, label="written in this step")
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.5, len(column) - 0.5)
        whole_numbers(axes.xaxis)
        axes.set_xlabel("step")
        axes.set_ylabel("attention received,\nqueries' worth")
        axes.set_title(f"{plain(model_label(trace.manifest))}, {one.name}", loc="left")
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
        title = f"{plain(model_label(trace.manifest))}:\nattention in step {step}, layer {layer}, head {head}"
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
    with figure_style():
        yield new_sheet(width, height).subplots()


def draw_map(axes: Any, trace: Trace, step: int, attention: Float[np.ndarray, "query key"], title: str) -> Any:
    """Draw a map, queries downwards and keys to the right, name its strongest columns above, and return the image."""
    from matplotlib import colormaps, rcParams
    from matplotlib.colors import PowerNorm

    keys = attention.shape[1]
    seen = np.where(np.tri(*attention.shape, dtype=bool), attention, np.nan) if trace.causal else attention
    colours, norm = colormaps[HEAT].with_extremes(bad="#e8e8e8"), PowerNorm(GAMMA, 0, 1)
    image = axes.imshow(seen, cmap=colours, norm=norm, interpolation="nearest", aspect="equal")
    prompt = int(trace.manifest.get("prompt_length") or 0)
    if 0 < prompt < keys:
        style = {"color": "white", "linewidth": 0.6, "linestyle": (0, (4, 3))}
        axes.axvline(prompt - 0.5, **style)
        axes.axhline(prompt - 0.5, **style)
    axes.spines[:].set_visible(False)
    whole_numbers(axes.xaxis, axes.yaxis)
    axes.set_xlabel("key (position)")
    columns = attention.sum(axis=0)
    excess = columns - (columns.sum() - columns) / max(1, keys - 1)
    strongest = [key for key in np.argsort(-columns, kind="stable")[:NAMED].tolist() if excess[key] > 1]
    places = spread_out(strongest, keys / 16, NAMED)
    # the layout does not see the names of the tokens
    axes.set_title(title, y=1, pad=ROOM_FOR_TOKENS * rcParams["font.size"] if places else 4)
    if places:
        above = axes.secondary_xaxis("top")
        names = [f"{int(at)}: {plain(tick_label(trace, int(trace.tokens[step][int(at)]), 7))}" for at in places]
        above.set_xticks(places, names, rotation=90, fontsize="small")
        above.tick_params(length=2, pad=1)
        above.spines[:].set_visible(False)
    return image


def scale_of_maps(part: Any, image: Any, panels: Any, **more: Any) -> None:
    """Add the bar of colours of maps beside them."""
    bar = part.colorbar(image, ax=panels, **{"aspect": 30, "pad": 0.01} | more)
    bar.set_label(f"share of a query's attention\n(colours by power {GAMMA})")
