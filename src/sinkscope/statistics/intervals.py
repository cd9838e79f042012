"""Means of numbers that may be missing (NaN), and their intervals over prompts: the BCa bootstrap, for many at once.

A bootstrap of few values is too narrow, so percentiles are taken further out, at Φ(√(n/(n−1))·t) of Student's t with
n − 1 degrees of freedom (Hesterberg, arXiv 1411.5279); benchmarks/RESULTS.md has the coverage.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sinkscope.sinks.drift import slopes

THIRDS = ("first", "middle", "last")
LEAST_PROMPTS = 5
"""Fewer prompts get no interval: five values can be drawn in only 126 ways."""
RESAMPLES = 2000
LEVEL = 0.95


def thirds(steps: int) -> dict[str, slice]:
    """Return the steps in three parts, as even as can be."""
    edges = [round(steps * part / 3) for part in range(4)]
    return {name: slice(low, high) for name, low, high in zip(THIRDS, edges[:-1], edges[1:], strict=True)}


def depth_slope(by_layer: Float[np.ndarray, " layer"]) -> float:
    """Return the least-squares slope against relative depth, from 0 (first layer) to 1 (last)."""
    return float(slopes(by_layer)) * (len(by_layer) - 1)


def mean(values: Shaped[np.ndarray, "*any"], where: Bool[np.ndarray, "*any"] | None = None) -> float:
    """Return the mean of the values that are not NaN, of those at ``where`` if it is given; NaN where none is left."""
    chosen = ~np.isnan(values) if where is None else where & ~np.isnan(values)
    return float(values[chosen].mean(dtype=np.float64)) if chosen.any() else float("nan")


def layer_means(by_head: Float[np.ndarray, "layer head"]) -> Float[np.ndarray, " layer"]:
    """Return the mean of each layer over the heads that are not NaN."""
    return ratio(np.nansum(by_head, axis=1), (~np.isnan(by_head)).sum(axis=1))


def known(number: float) -> float | None:
    """Return a number, None for NaN."""
    return None if math.isnan(number) else float(number)


def product(left: Float[np.ndarray, "..."], right: Float[np.ndarray, "..."]) -> Any:
    """Return left @ right without the "invalid value" that BLAS's padding sets off (numpy/numpy#13173, #24067)."""
    with np.errstate(invalid="ignore"):
        return left @ right


def quotient(part: Any, whole: Any) -> float:
    """Return part over whole, NaN where the whole is not above 0."""
    return float(part / whole) if whole > 0 else float("nan")


def ratio(total: Any, count: Any) -> Float[np.ndarray, "*any"]:
    """Return totals over counts, NaN where nothing was counted."""
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(np.broadcast(total, count).shape, np.nan), where=count > 0)


@dataclass(frozen=True, eq=False)
class Means:
    """Means over the prompts that have a value, their number, and intervals, NaN with fewer than five prompts."""

    mean: Float[np.ndarray, " statistic"]
    low: Float[np.ndarray, " statistic"]
    high: Float[np.ndarray, " statistic"]
    prompts: np.ndarray


def interval_of_means(
    values: Float[np.ndarray, "prompt statistic"], resamples: int = RESAMPLES, seed: int = 0
) -> Means:
    """Return the mean of every statistic over the prompts that have it (not NaN) with its BCa interval."""
    values = np.asarray(values, dtype=np.float64)
    there = ~np.isnan(values)
    prompts = there.sum(axis=0)
    means = ratio(np.where(there, values, 0.0).sum(axis=0), prompts)
    low, high = np.full_like(means, np.nan), np.full_like(means, np.nan)
    enough = prompts >= LEAST_PROMPTS
    if enough.any():
        weights = _draws(len(values), resamples, seed)
        for start in range(0, values.shape[1], 512):  # a block of statistics at a time bounds the memory
            block = np.flatnonzero(enough[start : start + 512]) + start
            low[block], high[block] = _corrected(values[:, block], means[block], weights, _quantile(prompts[block]))
    return Means(means, low, high, prompts)


def _quantile(prompts: Any) -> Any:
    """Return the normal quantile at which a bootstrap should take the upper end of an interval over so many prompts."""
    from scipy.special import stdtrit

    return np.sqrt(prompts / (prompts - 1)) * stdtrit(prompts - 1, (1 + LEVEL) / 2)


def _percentiles(prompts: int) -> list[float]:
    from scipy.special import ndtr

    upper = 100 * float(ndtr(_quantile(prompts)))
    return [100 - upper, upper]


def _draws(prompts: int, resamples: int, seed: int) -> Float[np.ndarray, "resample prompt"]:
    rng = np.random.default_rng(seed)
    return rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)


def _drawn_means(values: np.ndarray, weights: np.ndarray) -> Float[np.ndarray, "resample statistic"]:
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return product(weights, np.where(there, values, 0.0)) / product(weights, there.astype(np.float64))


def interval_of_pairs(
    agreement: Float[np.ndarray, "prompt prompt"], weight: Float[np.ndarray, "prompt prompt"], seed: int = 0
) -> tuple[float, float, float]:
    """Return the weighted mean over pairs of different prompts, with a percentile interval over prompts."""
    prompts = len(agreement)
    apart = 1 - np.eye(prompts)
    agreement, weight = agreement * apart, weight * apart
    mean, low, high = quotient(agreement.sum(), weight.sum()), np.nan, np.nan
    if prompts >= LEAST_PROMPTS and weight.any():
        draws = _draws(prompts, RESAMPLES, seed)
        above, below = ((product(draws, one) * draws).sum(axis=1) for one in (agreement, weight))
        low, high = np.percentile(above[below > 0] / below[below > 0], _percentiles(prompts)).tolist()
    return mean, low, high


def interval_of_difference(
    first: Float[np.ndarray, "prompt statistic"],
    second: Float[np.ndarray, "other statistic"],
    paired: bool,
    seed: int = 0,
) -> Means:
    """Return second minus first, of means, with the interval of differences if ``paired``, else of both's resamples."""
    if paired:
        return interval_of_means(second - first, seed=seed)
    ours, theirs = interval_of_means(first, seed=seed), interval_of_means(second, seed=seed)
    prompts = np.minimum(ours.prompts, theirs.prompts)
    low, high = np.full(len(prompts), np.nan), np.full(len(prompts), np.nan)
    enough = prompts >= LEAST_PROMPTS
    if enough.any():
        before, after = (
            _drawn_means(one[:, enough], _draws(len(one), RESAMPLES, seed + number))
            for number, one in enumerate((first, second))
        )
        for place, number in enumerate(np.flatnonzero(enough)):
            difference = after[:, place] - before[:, place]
            low[number], high[number] = np.nanpercentile(difference, _percentiles(int(prompts[number])))
    return Means(theirs.mean - ours.mean, low, high, prompts)


def _corrected(
    values: np.ndarray, means: np.ndarray, weights: np.ndarray, quantile: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias-corrected and accelerated percentiles of the means of all draws."""
    from scipy.special import ndtr, ndtri

    # The acceleration, from the skewness of the values: the jackknife of a mean in closed form.
    centred = np.where(np.isnan(values), 0.0, values - means)
    squares = (centred**2).sum(axis=0)
    cubes = (centred**3).sum(axis=0)
    acceleration = np.divide(cubes, 6 * squares**1.5, out=np.zeros_like(means), where=squares > 0)
    drawn = np.sort(_drawn_means(values, weights), axis=0)  # NaN, where no prompt with a value was drawn, goes last
    count = (~np.isnan(drawn)).sum(axis=0)
    rounding = 1e-10 * np.maximum(np.abs(means), np.nanmax(np.abs(drawn), axis=0))  # ties in whichever order of summing
    below = ((drawn < means - rounding).sum(axis=0) + 0.5 * (np.abs(drawn - means) <= rounding).sum(axis=0)) / count
    bias = ndtri(np.clip(below, 1 / (2 * count), 1 - 1 / (2 * count)))
    columns, ends = np.arange(drawn.shape[1]), []
    for tail in (-quantile, quantile):
        normal = bias + tail
        place = np.clip(ndtr(bias + normal / (1 - acceleration * normal)), 0, 1) * (count - 1)
        lower = np.floor(place).astype(int)
        upper = np.minimum(lower + 1, count - 1)
        ends.append(drawn[lower, columns] + (place - lower) * (drawn[upper, columns] - drawn[lower, columns]))
    flat = drawn[count - 1, columns] - drawn[0] <= rounding
    return np.where(flat, means, ends[0]), np.where(flat, means, ends[1])
