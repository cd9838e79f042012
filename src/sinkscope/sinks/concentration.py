"""Concentration: how much attention lies on how few tokens, by depth, over the steps, and against ε (Fig. 10)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.candidates import Candidates, percent_per_query
from sinkscope.sinks.definition import visible_query_mean
from sinkscope.sinks.drift import slopes
from sinkscope.sinks.layers import Layer
from sinkscope.sinks.points import Point, Values

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile

CURVE = tuple(number / 2 for number in range(21))
"""ε of Figure 10: 0, ½, … 10. The paper's points are among them."""

GU_THRESHOLD = 0.3
THIRDS = ("first", "middle", "last")


@dataclass(frozen=True)
class Concentration:
    """Axes step, (layer,) head; the layer axis is there once the layers are stacked.

    Attributes:
        counts, shares: [point, …], how many sinks, and the share of attention on them.
        top, largest: position and size (queries' worth) of the largest column.
        total: what the columns add up to, in queries' worth.
        entropy: of the columns, over that of equal columns: 0 where one has all, 1 where all are equal.
        gini: 0 where all columns are equal, 1 − 1/S where one has all.
        over_third: whether any key's mean α exceeds 0.3 (Gu et al.).
        curve: [unit, ε], how many columns exceed each ε of `CURVE`, in queries' worth and in percent.
    """

    counts: Int[np.ndarray, "point step *head"]
    shares: Float[np.ndarray, "point step *head"]
    top: Int[np.ndarray, "step *head"]
    largest: Float[np.ndarray, "step *head"]
    total: Float[np.ndarray, "step *head"]
    entropy: Float[np.ndarray, "step *head"]
    gini: Float[np.ndarray, "step *head"]
    over_third: np.ndarray
    curve: np.ndarray


def layer_concentration(layer: Layer, sinks: Candidates, lengths: Int[np.ndarray, " step"], causal: bool) -> Concentration:
    """One layer's; ``sinks`` are the candidates of its column sums."""
    sums, total = layer.sums, layer.total
    steps, heads, width = sums.shape
    place = sinks.step * heads + sinks.head
    counts, shares = sinks.tally(place, steps * heads), sinks.tally(place, steps * heads, sinks.column)
    somewhere = np.maximum(total, np.finfo(np.float32).tiny)
    zeroed = np.nan_to_num(sums)
    top = zeroed.argmax(axis=-1)
    largest = np.take_along_axis(zeroed, top[..., None], axis=-1)[..., 0]
    over = largest / lengths[:, None] if not causal else np.nan_to_num(visible_query_mean(sums, causal=True)).max(axis=-1)
    return Concentration(
        counts.astype(np.int32).reshape(-1, steps, heads),
        (shares.reshape(-1, steps, heads) / somewhere).astype(np.float32),
        top,
        largest,
        total,
        _entropy(zeroed, somewhere, lengths),
        _gini(zeroed, somewhere, lengths),
        over > GU_THRESHOLD,
        _curve(layer.excess, percent_per_query(total), width),
    )


def _entropy(columns: np.ndarray, total: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    share = columns / total[..., None]
    logs = np.log(np.maximum(share, np.finfo(np.float32).tiny))
    return -np.einsum("shk,shk->sh", share, logs) / np.log(np.maximum(lengths, 2))[:, None]


def _gini(columns: np.ndarray, total: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """2 Σ i·c₍ᵢ₎ / (n Σ c) − (n+1)/n over the sorted columns; what lies beyond the length sorts first, as zeros."""
    width, count = columns.shape[-1], lengths[:, None]
    ranked = np.sort(columns, axis=-1) @ np.arange(1, width + 1, dtype=np.float32)
    return 2 * (ranked / total - (width - count)) / count - (count + 1) / count


def _curve(excess: np.ndarray, percent: np.ndarray, width: int) -> np.ndarray:
    """How many columns exceed each ε: those above 0, in bins of ½ closed above."""
    with np.errstate(invalid="ignore"):
        step, head, _ = places = np.nonzero(excess > 0)
    above = excess[places]
    rows = []
    for values in (above, above * percent[step, head]):
        bins = np.minimum(np.ceil(2 * values).astype(np.int64) - 1, len(CURVE) - 1)
        rows.append(np.cumsum(np.bincount(bins, minlength=len(CURVE))[::-1])[::-1])
    return np.array(rows)


def concentration_values(profile: "Profile", point: Point) -> Values:
    """How many sinks, how much attention on them, by depth and over the steps."""
    found = profile.concentration
    number = profile.points.index(point)
    counts, shares = found.counts[number], found.shares[number]
    by_layer = counts.mean(axis=(0, 2))
    present = counts > 0
    number_of = present.sum(axis=(0, 2))
    strength = np.where(number_of > 0, np.where(present, found.largest, 0).sum(axis=(0, 2)) / np.maximum(number_of, 1), np.nan)
    values: Values = {
        ("concentration.sinks_per_head", ()): float(by_layer.mean()),
        ("concentration.share_on_sinks", ()): float(shares.mean()),
        ("concentration.layers_without", ()): float((~present.any(axis=2)).mean()),
        ("concentration.number_by_depth", ()): depth_slope(by_layer),
        ("concentration.strength_by_depth", ()): depth_slope(strength),
    }
    for layer in range(len(by_layer)):
        values["concentration.sinks_per_head_in", (("layer", layer),)] = float(by_layer[layer])
        values["concentration.strength_in", (("layer", layer),)] = float(strength[layer])
    for third, steps in thirds(profile.steps).items():
        values["concentration.sinks_per_head_over_steps", (("third", third),)] = _mean(counts[steps])
        values["concentration.share_on_sinks_over_steps", (("third", third),)] = _mean(shares[steps])
    return values


def evenness_values(profile: "Profile") -> Values:
    """What needs no ε: entropy, Gini, the rate of Gu et al., and the ε curve itself."""
    found = profile.concentration
    values: Values = {}
    for name, array in (("entropy", found.entropy), ("gini", found.gini), ("gu_rate", found.over_third)):
        values[f"concentration.{name}", ()] = float(array.mean())
        for layer in range(array.shape[1]):
            values[f"concentration.{name}_in", (("layer", layer),)] = float(array[:, layer].mean())
        for third, steps in thirds(profile.steps).items():
            values[f"concentration.{name}_over_steps", (("third", third),)] = _mean(array[steps])
    columns = profile.canvas.lengths.sum() * found.top.shape[1] * found.top.shape[2]
    for unit, over in zip(("queries", "percent"), found.curve.sum(axis=1), strict=True):
        for excess, count in zip(CURVE, over.tolist(), strict=True):
            for positions in ("any", length_class(int(profile.canvas.lengths.max()))):
                values["epsilon.not_sinks", (("positions", positions), ("unit", unit), ("excess", excess))] = 1 - count / columns
    return values


def length_class(positions: int) -> str:
    """Canvases up to 64, 128, 256 … tokens."""
    return f"up to {max(64, 1 << (positions - 1).bit_length())}"


def depth_slope(by_layer: Float[np.ndarray, " layer"]) -> float:
    """Least-squares slope against relative depth, from 0 (first layer) to 1 (last); NaN with fewer than two layers."""
    return float(slopes(by_layer)) * (len(by_layer) - 1)


def thirds(steps: int) -> dict[str, slice]:
    """The steps in three parts, as even as can be."""
    edges = [round(steps * part / 3) for part in range(4)]
    return {name: slice(low, high) for name, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True)}


def _mean(array: np.ndarray) -> float:
    return float(array.mean()) if array.size else float("nan")
