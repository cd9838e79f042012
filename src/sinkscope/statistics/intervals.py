"""Intervals over prompts: BCa bootstrap of means, for many statistics at once, and of what has no per-prompt mean.

The unit of evidence is the prompt: steps follow each other and all heads see the same commits, so neither counts as
a repetition. All statistics are resampled with the same draws of prompts.

A bootstrap of few values is too narrow. Percentiles are therefore taken further out, at Φ(√(n/(n−1))·t) of Student's t
with n − 1 degrees of freedom instead of at 2.5 % (Hesterberg, arXiv 1411.5279): what is reached is in
benchmarks/RESULTS.md.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sinkscope.statistics.averages import product

LEAST_PROMPTS = 5
"""Fewer prompts get no interval: five values can be drawn in only 126 ways."""
RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Means:
    """Means over the prompts that have a value (NaN where none has), their number, and BCa intervals, which are NaN
    with fewer than five prompts.
    """

    mean: Float[np.ndarray, " statistic"]
    low: Float[np.ndarray, " statistic"]
    high: Float[np.ndarray, " statistic"]
    prompts: np.ndarray


def interval_of_means(
    values: Float[np.ndarray, "prompt statistic"], resamples: int = RESAMPLES, seed: int = 0
) -> Means:
    """Return the mean of every statistic over prompts, with its BCa bootstrap interval.

    A statistic that is the same in every prompt gets an interval of width 0.

    Args:
        values: one row a prompt; NaN where a prompt has no value, which leaves it out of that mean.
        resamples: draws of prompts with replacement.
    """
    values = np.asarray(values, dtype=np.float64)
    there = ~np.isnan(values)
    prompts = there.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = np.where(there, values, 0.0).sum(axis=0) / prompts
    low, high = np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    enough = prompts >= LEAST_PROMPTS
    if enough.any():
        weights = draws_of_prompts(len(values), resamples, seed)
        for start in range(0, values.shape[1], 512):  # a block of statistics at a time bounds the memory
            block = np.flatnonzero(enough[start : start + 512]) + start
            low[block], high[block] = _corrected(values[:, block], mean[block], weights, _quantile(prompts[block]))
    return Means(mean, low, high, prompts)


def _quantile(prompts: np.ndarray) -> Float[np.ndarray, "..."]:
    """Return the normal quantile at which a bootstrap should take the upper end of an interval over so many prompts."""
    from scipy.special import stdtrit

    prompts = np.asarray(prompts, dtype=np.float64)
    return np.asarray(np.sqrt(prompts / (prompts - 1)) * stdtrit(prompts - 1, (1 + LEVEL) / 2))


def _percentiles(prompts: int) -> list[float]:
    from scipy.special import ndtr

    upper = 100 * float(ndtr(_quantile(np.array(prompts))))
    return [100 - upper, upper]


def draws_of_prompts(prompts: int, resamples: int, seed: int) -> Float[np.ndarray, "resample prompt"]:
    """Return how often each prompt is drawn in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)


def _drawn_means(values: np.ndarray, weights: np.ndarray) -> Float[np.ndarray, "resample statistic"]:
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return product(weights, np.where(there, values, 0.0)) / product(weights, there.astype(np.float64))


def interval_of_pairs(
    agreement: Float[np.ndarray, "prompt prompt"], weight: Float[np.ndarray, "prompt prompt"], seed: int = 0
) -> tuple[float, float, float]:
    """Return the weighted mean over pairs of different prompts, with a percentile interval over prompts.

    A prompt that is drawn twice is not compared with itself.
    """
    prompts = len(agreement)
    apart = 1 - np.eye(prompts)
    agreement, weight = agreement * apart, weight * apart
    total = weight.sum()
    mean = float(agreement.sum() / total) if total else float("nan")
    if prompts < LEAST_PROMPTS or not total:
        return mean, float("nan"), float("nan")
    draws = draws_of_prompts(prompts, RESAMPLES, seed)
    above, below = ((product(draws, one) * draws).sum(axis=1) for one in (agreement, weight))
    low, high = np.percentile(above[below > 0] / below[below > 0], _percentiles(prompts))
    return mean, float(low), float(high)


def interval_of_difference(
    first: Float[np.ndarray, "prompt statistic"],
    second: Float[np.ndarray, "other statistic"],
    paired: bool,
    seed: int = 0,
) -> Means:
    """Return second minus first, of means over prompts.

    Args:
        paired: both sets hold the same prompts in the same order: the interval is that of the mean of the differences
            (BCa). Otherwise both are resampled on their own (percentile).
    """
    if paired:
        return interval_of_means(second - first, seed=seed)
    ours, theirs = interval_of_means(first, seed=seed), interval_of_means(second, seed=seed)
    prompts = np.minimum(ours.prompts, theirs.prompts)
    low, high = np.full(len(prompts), np.nan), np.full(len(prompts), np.nan)
    enough = prompts >= LEAST_PROMPTS
    if enough.any():
        drawn = [
            _drawn_means(one[:, enough], draws_of_prompts(len(one), RESAMPLES, seed + number))
            for number, one in enumerate((first, second))
        ]
        for place, number in enumerate(np.flatnonzero(enough)):
            difference = drawn[1][:, place] - drawn[0][:, place]
            low[number], high[number] = np.nanpercentile(difference, _percentiles(int(prompts[number])))
    return Means(theirs.mean - ours.mean, low, high, prompts)


def _corrected(
    values: np.ndarray, mean: np.ndarray, weights: np.ndarray, quantile: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias-corrected and accelerated percentiles of the means of all draws."""
    from scipy.special import ndtr, ndtri

    # The acceleration, from the skewness of the values: the jackknife of a mean in closed form.
    centred = np.where(np.isnan(values), 0.0, values - mean)
    squares = (centred**2).sum(axis=0)
    cubes = (centred**3).sum(axis=0)
    acceleration = np.divide(cubes, 6 * squares**1.5, out=np.zeros_like(mean), where=squares > 0)
    drawn = np.sort(_drawn_means(values, weights), axis=0)  # NaN, where no prompt with a value was drawn, goes last
    count = (~np.isnan(drawn)).sum(axis=0)
    rounding = 1e-10 * np.maximum(np.abs(mean), np.nanmax(np.abs(drawn), axis=0))  # ties in whichever order of summing
    below = ((drawn < mean - rounding).sum(axis=0) + 0.5 * (np.abs(drawn - mean) <= rounding).sum(axis=0)) / count
    bias = ndtri(np.clip(below, 1 / (2 * count), 1 - 1 / (2 * count)))
    columns, ends = np.arange(drawn.shape[1]), []
    for tail in (-quantile, quantile):
        normal = bias + tail
        share = ndtr(bias + normal / (1 - acceleration * normal))
        place = np.clip(share, 0, 1) * (count - 1)
        lower = np.floor(place).astype(int)
        upper = np.minimum(lower + 1, count - 1)
        ends.append(drawn[lower, columns] + (place - lower) * (drawn[upper, columns] - drawn[lower, columns]))
    flat = drawn[count - 1, columns] - drawn[0] <= rounding
    return np.where(flat, mean, ends[0]), np.where(flat, mean, ends[1])
