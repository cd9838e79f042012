"""Norms (paper 2, Fig. 1): are sinks small in value space, so that attending to one is close to doing nothing?"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.candidates import Candidates
from sinkscope.sinks.layers import NORMS, Layer
from sinkscope.sinks.points import Point, Values

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile


@dataclass(frozen=True)
class Norms:
    """Kinds of norms as in `layers.NORMS`; sums over steps, heads and positions; NaN where a norm was not recorded.

    Attributes:
        of_sinks: [point, …, 9], of the sinks: sum, sum of squares and number of each kind.
        of_all: [1, …, 9], of all tokens.
        above: [kind, step, …, head], share of the other tokens whose norm is above that of the head's largest column.
        noop: [point, step, …, head], share of Σ_j c_j·‖v_j‖ that comes from sinks.
        given: [step, …, head], Σ_j c_j·‖v_j‖.
    """

    of_sinks: Float[np.ndarray, "point *layer nine"]
    of_all: Float[np.ndarray, "one *layer nine"]
    above: Float[np.ndarray, "kind step *head"]
    noop: Float[np.ndarray, "point step *head"]
    given: Float[np.ndarray, "step *head"]


def layer_norms(layer: Layer, sinks: Candidates, lengths: Int[np.ndarray, " step"], top: Int[np.ndarray, "step head"]) -> Norms:
    """One layer's; a query head reads the norms of its kv head, all heads those of the hidden state."""
    found = norms_by_step(layer, sinks, lengths, top)
    return replace(found, of_sinks=found.of_sinks.sum(axis=1), of_all=found.of_all.sum(axis=1))


def norms_by_step(layer: Layer, sinks: Candidates, lengths: Int[np.ndarray, " step"], top: Int[np.ndarray, "step head"]) -> Norms:
    """The same with the sums apart for every step: of_sinks [point, step, 9], of_all [1, step, 9]."""
    steps, heads, _ = layer.sums.shape
    points = len(sinks.points)
    of_sinks, of_all = np.full((points, steps, 9), np.nan), np.full((1, steps, 9), np.nan)
    above = np.full((3, steps, heads), np.nan, np.float32)
    noop = np.full((points, steps, heads), np.nan, np.float32)
    given = np.full((steps, heads), np.nan, np.float32)
    for kind, name in enumerate(NORMS):
        if name not in layer.norms:
            continue
        norms = layer.norms[name]
        shared = heads // norms.shape[1]
        there = np.count_nonzero(~np.isnan(norms), axis=(1, 2))
        known = np.nan_to_num(norms)
        sums = known.sum(axis=(1, 2), dtype=np.float64), np.einsum("sgk,sgk->s", known, known, dtype=np.float64)
        of_all[0, :, 3 * kind : 3 * kind + 3] = shared * np.stack([*sums, there], axis=-1)
        at = norms[sinks.step, sinks.head // shared, sinks.key].astype(np.float64)
        for column, weights in enumerate((at, at**2, None)):
            of_sinks[:, :, 3 * kind + column] = sinks.tally(sinks.step, steps, weights)
        above[kind] = _share_above(norms, shared, top, lengths)
        if name == "value_norms":
            product = np.einsum("sgok,sgk->sgo", *_by_kv_head(np.nan_to_num(layer.sums), known)).reshape(steps, heads)
            given = product.astype(np.float32)
            part = sinks.tally(sinks.step * heads + sinks.head, steps * heads, sinks.column * at).reshape(points, steps, heads)
            noop = np.divide(part, product, out=np.full(part.shape, np.nan), where=product > 0).astype(np.float32)
    return Norms(of_sinks, of_all, above, noop, given)


def _by_kv_head(columns: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    steps, _, width = columns.shape
    return columns.reshape(steps, norms.shape[1], -1, width), norms


def _share_above(norms: np.ndarray, shared: int, top: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Ties count half."""
    steps, kv_heads, _ = norms.shape
    own = np.take_along_axis(norms, top.reshape(steps, kv_heads, shared), axis=-1)
    share = np.empty(own.shape, np.float32)
    with np.errstate(invalid="ignore"):
        for one in range(shared):
            larger = np.count_nonzero(norms > own[..., one, None], axis=-1)
            equal = np.count_nonzero(norms == own[..., one, None], axis=-1) - 1
            share[..., one] = larger + 0.5 * equal
    return share.reshape(top.shape) / np.maximum(lengths - 1, 1)[:, None]


def norm_values(profile: "Profile", point: Point) -> Values:
    """Means of sinks and of other tokens per layer, two effect sizes, and the no-op contribution."""
    found, number = profile.norms, profile.points.index(point)
    present = profile.concentration.counts[number] > 0
    values: Values = {}
    for kind, name in enumerate(NORMS):
        short = name.removesuffix("s")
        sums = [array[..., 3 * kind : 3 * kind + 3] for array in (found.of_sinks[number], found.of_all[0])]
        for layer in range(len(sums[0])):
            at = (("layer", layer),)
            sink, other, effect = _compared(sums[0][layer], sums[1][layer] - sums[0][layer])
            values[f"norms.{short}_of_sinks_in", at] = sink
            values[f"norms.{short}_of_others_in", at] = other
            values[f"norms.{short}_effect_in", at] = effect
            values[f"norms.{short}_auc_in", at] = _mean(found.above[kind][:, layer], present[:, layer])
        values[f"norms.{short}_auc", ()] = _mean(found.above[kind], present)
        values[f"norms.{short}_effect", ()] = _mean_of(
            [values[f"norms.{short}_effect_in", (("layer", one),)] for one in range(len(sums[0]))]
        )
    values["norms.contribution", ()] = _mean(found.noop[number], present)
    values["norms.contribution_over_attention", ()] = _over_attention(
        found.noop[number], profile.concentration.shares[number], found.given, present
    )
    return values


def _over_attention(noop: np.ndarray, shares: np.ndarray, given: np.ndarray, present: np.ndarray) -> float:
    """Sums over sums, both linear in the norms: a mean of the heads' own ratios falls below 1 also where norms know nothing of sinks."""
    counted = present & ~np.isnan(noop)
    expected = (shares * given)[counted].sum(dtype=np.float64)
    return float((noop * given)[counted].sum(dtype=np.float64) / expected) if expected > 0 else float("nan")


def _compared(sinks: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Two means and Cohen's d (sinks − others over the pooled standard deviation), from sum, squares and number."""
    if not (sinks[2] >= 1 and others[2] >= 1):
        return float("nan"), float("nan"), float("nan")
    sink, other = (float(one[0] / one[2]) for one in (sinks, others))
    spread = sum(max(0.0, one[1] - one[0] ** 2 / one[2]) for one in (sinks, others)) / max(1.0, sinks[2] + others[2] - 2)
    return sink, other, (sink - other) / float(np.sqrt(spread)) if spread > 0 else float("nan")


def _mean(array: np.ndarray, where: np.ndarray) -> float:
    chosen = array[where & ~np.isnan(array)]
    return float(chosen.mean()) if len(chosen) else float("nan")


def _mean_of(numbers: list[float]) -> float:
    there = [number for number in numbers if not np.isnan(number)]
    return float(np.mean(there)) if there else float("nan")
