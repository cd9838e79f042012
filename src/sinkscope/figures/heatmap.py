"""Draws one attention map."""

from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.figures.style import HEAT, VERMILLION, plain, spread_out, tick_label, whole_numbers
from sinkscope.traces import Trace

MAP_HEADER = ("model", "panel", "step", "layer", "head", "query", "key", "attention")

GAMMA = 0.3  # so that an equal share of 1/256 is at a fifth of the scale
NAMED = 9
ROOM_FOR_TOKENS = 7.4  # lines of text above a map
LEAST_SHARE = 1e-4  # smaller shares are left out of CSV files
SCALE = f"share of a query's attention (colours by power {GAMMA})"


def draw_map(axes: Any, trace: Trace, step: int, attention: Float[np.ndarray, "query key"], title: str) -> Any:
    """Draw a map, queries downwards and keys to the right, name its strongest columns above, and return the image."""
    from matplotlib import colormaps, rcParams
    from matplotlib.colors import PowerNorm

    keys = attention.shape[1]
    seen = np.where(np.tri(*attention.shape, dtype=bool), attention, np.nan) if trace.causal else attention
    image = axes.imshow(
        seen,
        cmap=colormaps[HEAT].with_extremes(bad="#e8e8e8"),
        norm=PowerNorm(GAMMA, 0, 1),
        interpolation="nearest",
        aspect="equal",
    )
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
    axes.set_title(
        title, y=1, pad=ROOM_FOR_TOKENS * rcParams["font.size"] if places else 4
    )  # the layout does not see the names of the tokens
    if places:
        above = axes.secondary_xaxis("top")
        tokens = trace.tokens[step]
        names = [f"{int(place)}: {plain(tick_label(trace, int(tokens[int(place)]), 7))}" for place in places]
        above.set_xticks(places, names, rotation=90, fontsize="small")
        above.tick_params(length=2, pad=1)
        above.spines[:].set_visible(False)
    return image


def mark_column(axes: Any, key: int, queries: int, colour: str = VERMILLION) -> None:
    """Draw a triangle below a map at a key."""
    axes.plot(
        [key],
        [queries - 0.5],
        marker="^",
        markersize=5,
        color=colour,
        markeredgecolor="white",
        markeredgewidth=0.4,
        clip_on=False,
        zorder=5,
    )


def map_lines(
    label: str, panel: str, place: tuple[int, int, int], attention: Float[np.ndarray, "query key"]
) -> list[tuple[Any, ...]]:
    """Return the rows of a map for a CSV file with `MAP_HEADER`; shares below `LEAST_SHARE` are left out."""
    query, key = np.nonzero(attention >= LEAST_SHARE)
    values = attention[query, key]
    return [
        (label, panel, *place, i, j, format(value, ".5g"))
        for i, j, value in zip(query.tolist(), key.tolist(), values.tolist(), strict=True)
    ]
