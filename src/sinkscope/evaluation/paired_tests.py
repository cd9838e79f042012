"""Intervals, paired tests and verdicts. Their meaning was fixed before any result was seen.

All are over the problems of one checkpoint, paired by problem. A *difference* is accuracy with keys hidden minus
accuracy without. Verdicts, by its two-sided 95 % interval:

robust      the lower bound is above −2 points; this needs 189 problems (`LEAST`) even if no answer changes
degraded    the upper bound is below −2 points
undecided   otherwise; `Difference.needed` is the number of problems that would decide it if nothing was lost

Beside other tests, `after_holm` corrects both: the p-value of any change, and that of a loss of 2 points.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
MARGIN = 0.02
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
LEAST = math.ceil(Z**2 * (1 - MARGIN) / MARGIN)
"""With fewer problems than this the interval reaches below −`MARGIN` even where not one answer changes."""


def wilson_interval(correct: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a share."""
    from scipy.stats import binomtest

    interval = binomtest(correct, n).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of how often one of k ≤ n answers is correct (Chen et al. 2021, eq. 1)."""
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


@dataclass(frozen=True)
class Difference:
    """A mean of ``n`` paired differences as shares (0.01 is a point), with its 95 % interval; discordant: that differ.

    p_value: two-sided, exact, over all assignments of the runs within each problem; McNemar's test for two runs.
    p_margin: two-sided, of a true loss of 2 points, by the score of which the interval is made.
    """

    n: int
    mean: float
    low: float
    high: float
    p_value: float
    discordant: int
    p_margin: float

    @property
    def verdict(self) -> str:
        if self.p_margin > 1 - CONFIDENCE:
            return "undecided"
        if self.high < -MARGIN:
            return "degraded"
        return "robust" if self.low > -MARGIN and self.n >= LEAST else "undecided"

    @property
    def needed(self) -> int:
        """Number of problems whose interval would lie above −2 points, with equal shares gained and lost."""
        share = self.discordant / self.n / 2
        return math.ceil(Z**2 * _variance(share, share, -MARGIN) / MARGIN**2)

    @property
    def too_small(self) -> bool:
        return self.verdict == "undecided" and self.needed > self.n


def paired_difference(changed: Sequence[int], unchanged: Sequence[int]) -> Difference:
    """Return accuracy under one condition minus another's, of the same problems (1 right); Tango's interval (1998)."""
    one, other = np.asarray([changed, unchanged], dtype=float)
    gained, lost = int((one > other).sum()), int((one < other).sum())
    low, high = _tango(gained, lost, n := len(one))
    mean, error = (gained - lost) / n, math.sqrt(_variance(gained / n, lost / n, -MARGIN) / n)
    return Difference(n, mean, low, high, _p_value(one, [other]), gained + lost, _two_sided((mean + MARGIN) / error))


def against_controls(one: Sequence[int], others: Sequence[Sequence[int]], sign: int = 1) -> Difference:
    """Return accuracy with sinks hidden minus that under controls, mean over seeds; −1 turns the sign around. Agresti
    and Min's interval (2005): Wald's with two more problems, each half gained, half lost; of one seed Tango's.
    """
    if len(others) == 1:
        return paired_difference(*(one, others[0])[::sign])
    mine, *theirs = np.asarray([one, *others], dtype=float)
    pairs, n = sign * (mine - np.mean(theirs, axis=0)), len(mine) + 2
    middle = pairs.sum() / n
    error = math.sqrt(((pairs**2).sum() + 1) / n - middle**2) / math.sqrt(n)
    low, high = max(-1.0, middle - Z * error), min(1.0, middle + Z * error)
    different = int((np.ptp([mine, *theirs], axis=0) > 0).sum())
    p_values = _p_value(mine, theirs), _two_sided((middle + MARGIN) / error)
    return Difference(len(pairs), float(pairs.mean()), low, high, p_values[0], different, p_values[1])


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


def _tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    from scipy.optimize import root_scalar

    def end(sign: int, low: float, high: float) -> float:
        def away(difference: float) -> float:
            return found - difference + sign * Z * math.sqrt(_variance(gained / n, lost / n, difference) / n)

        return float(root_scalar(away, bracket=(low, high), xtol=1e-12).root)

    found, beside = (gained - lost) / n, 1e-9  # where all are alike the score is 0 at the difference found itself, too
    return -1.0 if found == -1 else end(-1, -1.0, found - beside), 1.0 if found == 1 else end(1, found + beside, 1.0)


def _variance(gained: float, lost: float, difference: float) -> float:
    """Return n times the variance of a paired difference at the likeliest shares that differ by so much."""
    linear = (2 - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    likeliest = (math.sqrt(max(linear**2 - 8 * constant, 0.0)) - linear) / 4
    return max(2 * likeliest + difference * (1 - difference), 0.0)


def _p_value(one: NDArray, others: Sequence[NDArray]) -> float:
    """Return twice the smaller tail, where the runs of a problem that are right are as likely to be any of its runs."""
    from scipy.stats import binom

    right = one + np.sum(others, axis=0)
    chances = np.ones(1)
    for count in range(1, len(others) + 1):
        if problems := int((right == count).sum()):
            chances = np.convolve(chances, binom.pmf(np.arange(problems + 1), problems, count / (len(others) + 1)))
    found = round(float(one.sum())) - int((right > len(others)).sum())  # but those that every run has right
    return float(min(1.0, 2 * min(chances[: found + 1].sum(), chances[found:].sum())))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for that many tests (Holm 1979), in the given order."""
    order = np.argsort(p_values, kind="stable")
    raised = np.arange(len(p_values), 0, -1) * np.sort(p_values)
    return np.minimum(1.0, np.maximum.accumulate(raised))[order.argsort()].tolist()


def after_holm(tests: Sequence[Difference]) -> list[tuple[Difference, float]]:
    """Return a family of tests with verdicts after Holm, each with the p-value of any change after Holm."""
    margins = holm([one.p_margin for one in tests])
    corrected = [replace(one, p_margin=margin) for one, margin in zip(tests, margins, strict=True)]
    return list(zip(corrected, holm([one.p_value for one in tests]), strict=True))


def points(change: Mapping[str, Any], between: str = " … ") -> str:
    """Return a difference of accuracies with its interval, in points."""
    return f"{100 * change['mean']:+.1f} ({100 * change['low']:+.1f}{between}{100 * change['high']:+.1f})"


def p_text(value: float | None) -> str:
    """Return a p value as text."""
    return "–" if value is None else "< 1e-12" if value < 1e-12 else f"{value:.2g}"
