"""Intervals, paired tests and verdicts; what they mean was fixed before any result was seen.

Everything is over problems, paired by problem, of one checkpoint. A *difference* is accuracy with keys hidden minus
accuracy without. Verdicts, by its two-sided 95 % interval:

robust      the lower bound is above −2 points, and there are problems enough (183) that a loss of 2 points would hardly go unseen
degraded    the upper bound is below −2 points
undecided   else; with `Difference.needed`, how many problems would decide if nothing was lost
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import CallError

CONFIDENCE = 0.95
MARGIN = 0.02
RESAMPLES = 9999
SEED = 0
LEAST = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(1 - MARGIN))
"""Fewer problems than this all survive a loss of `MARGIN` with more than 2.5 % probability."""


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share, 95 %; sensible also at 0 and n."""
    from scipy.stats import binomtest

    interval = binomtest(correct, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of how often one of k answers is correct, from n of which some are (Chen et al. 2021, eq. 1).

    Raises:
        CallError: k above n, or below 1.
    """
    if not 1 <= k <= n:
        raise CallError(f"pass@{k}: expected k from 1 to {n}, the number of answers")
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences.

    Attributes:
        n: pairs.
        mean, low, high: the difference and its 95 % interval, as shares (0.01 is a point).
        p_value: two-sided; exact McNemar where each pair is −1, 0 or 1, else a sign-flip permutation test.
        discordant: pairs that differ.
    """

    n: int
    mean: float
    low: float
    high: float
    p_value: float
    discordant: int

    @property
    def verdict(self) -> str:
        """``robust``, ``degraded`` or ``undecided``, see the module."""
        if self.high < -MARGIN:
            return "degraded"
        return "robust" if self.low > -MARGIN and self.n >= LEAST else "undecided"

    @property
    def needed(self) -> int:
        """Problems at which an interval of this width around no difference would lie above −2 points."""
        return max(LEAST, math.ceil(self.n * ((self.high - self.low) / 2 / MARGIN) ** 2))

    @property
    def too_small(self) -> bool:
        """Whether no verdict was possible because there are too few problems."""
        return self.verdict == "undecided" and self.needed > self.n


def paired_difference(changed: Sequence[int], unchanged: Sequence[int]) -> Difference:
    """Accuracy of the same problems under two conditions, the first minus the second.

    Args:
        changed, unchanged: 1 where a problem was answered correctly, else 0, in the same order.

    Raises:
        CallError: not as many of one as of the other, or none.
    """
    return _difference(_pairs(changed, unchanged))


def against_controls(sink: Sequence[int], controls: Sequence[Sequence[int]]) -> Difference:
    """Difference of differences: what hiding sinks changes beyond what the controls, averaged over their seeds, change.

    The unhidden run cancels: (sink − none) − mean(control − none) = sink − mean(control), problem by problem.

    Args:
        sink: outcomes with sinks hidden.
        controls: outcomes of the controls, one sequence a seed.

    Raises:
        CallError: no control, or one of another length.
    """
    if not controls:
        raise CallError("expected the outcomes of at least one control, found none")
    return _difference(np.mean([_pairs(sink, control) for control in controls], axis=0))


def _pairs(changed: Sequence[int], unchanged: Sequence[int]) -> NDArray[np.float64]:
    if len(changed) != len(unchanged) or not len(changed):
        raise CallError(f"expected the same problems under both conditions, found {len(changed)} and {len(unchanged)}")
    return np.asarray(changed, dtype=float) - np.asarray(unchanged, dtype=float)


def _difference(pairs: NDArray[np.float64]) -> Difference:
    values, counts = np.unique(pairs.round(12), return_counts=True)
    low, high = _bca(values, counts)
    return Difference(len(pairs), float(pairs.mean()), low, high, _p_value(values, counts), int(counts[values != 0].sum()))


def _bca(values: NDArray, counts: NDArray) -> tuple[float, float]:
    """BCa bootstrap interval of a mean (Efron 1987) that takes few values: resamples are multinomial draws of how often each comes.

    Where all pairs are alike there is nothing to resample; then the share of any other value is bounded by Clopper and Pearson.
    """
    from scipy.special import ndtr, ndtri

    n, tail = int(counts.sum()), (1 - CONFIDENCE) / 2
    if len(values) == 1:
        other = 1 - tail ** (1 / n)
        return float(values[0] - other * (1 + values[0])), float(values[0] + other * (1 - values[0]))
    mean = values @ counts / n
    means = np.random.default_rng(SEED).multinomial(n, counts / n, RESAMPLES) @ values / n
    tie = 1e-9  # sums of the same counts may round differently
    below = ((means < mean - tie).sum() + (means <= mean + tie).sum()) / (2 * RESAMPLES)
    bias = ndtri(below)
    away = values - mean
    acceleration = (counts @ away**3) / (6 * (counts @ away**2) ** 1.5)
    reach = bias + ndtri([tail, 1 - tail])
    low, high = np.quantile(means, ndtr(bias + reach / (1 - acceleration * reach)))
    return float(low), float(high)


def _p_value(values: NDArray, counts: NDArray) -> float:
    from scipy.stats import binomtest

    different = values != 0
    values, counts = values[different], counts[different]
    if not len(values):
        return 1.0
    sizes = np.unique(np.abs(values))
    if len(sizes) == 1:
        return float(binomtest(int(counts[values > 0].sum()), int(counts.sum())).pvalue)
    rng = np.random.default_rng(SEED)
    sums = np.zeros(RESAMPLES)
    for size in sizes:
        number = int(counts[np.abs(values) == size].sum())
        sums += size * (2 * rng.binomial(number, 0.5, RESAMPLES) - number)
    return float((1 + (np.abs(sums) >= abs(values @ counts) - 1e-9).sum()) / (RESAMPLES + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for that many tests (Holm 1979), in the given order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
