"""Statistics beside dense versions (scipy's own bootstrap, textbook formulas), and their error rates on simulated nulls."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from sinkscope.errors import CallError
from sinkscope.evaluation.statistics import LEAST, MARGIN, Difference, against_controls, holm, paired_difference, pass_at_k, wilson_interval


def wilson_by_hand(correct, n, z=1.959963984540054):
    """Wilson (1927), as in any textbook."""
    share = correct / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return middle - reach, middle + reach


@pytest.mark.parametrize(("correct", "n"), [(0, 5), (3, 7), (1200, 1319), (164, 164)])
def test_the_interval_is_wilsons(correct, n):
    assert wilson_interval(correct, n) == pytest.approx(wilson_by_hand(correct, n), abs=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(1, 1, 1), (5, 0, 2), (5, 2, 1), (6, 2, 3), (6, 5, 3), (4, 4, 4)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_one(n, correct, k):
    draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_needs_k_answers():
    for k in (0, 4):
        with pytest.raises(CallError, match=f"pass@{k}: expected k from 1 to 3, the number of answers"):
            pass_at_k(3, 1, k)


def outcomes(lost, gained, both, neither):
    """(changed, unchanged) with these numbers of pairs."""
    return [0] * lost + [1] * gained + [1] * both + [0] * neither, [1] * lost + [0] * gained + [1] * both + [0] * neither


@pytest.mark.parametrize("cells", [(9, 4, 80, 30), (30, 2, 300, 168), (1, 0, 20, 19), (0, 3, 50, 7), (40, 39, 1000, 240)])
def test_the_interval_is_scipys_bca_and_the_test_mcnemars(cells):
    changed, unchanged = outcomes(*cells)
    found = paired_difference(changed, unchanged)
    pairs = np.array(changed) - np.array(unchanged)
    dense = scipy.stats.bootstrap((pairs,), np.mean, method="BCa", n_resamples=9999, rng=np.random.default_rng(5), batch=500)
    step = 1 / len(pairs)  # means are multiples of this
    assert found.low == pytest.approx(dense.confidence_interval.low, abs=1.5 * step)
    assert found.high == pytest.approx(dense.confidence_interval.high, abs=1.5 * step)
    lost, gained = cells[:2]
    exact = min(1.0, 2 * sum(math.comb(lost + gained, i) for i in range(min(lost, gained) + 1)) / 2 ** (lost + gained))
    assert found.p_value == pytest.approx(exact)
    assert (found.n, found.mean, found.discordant) == (len(pairs), pytest.approx(pairs.mean()), lost + gained)


def test_more_than_two_values_beside_scipy():
    rng = np.random.default_rng(1)
    sink, controls = rng.random(150) < 0.6, [list(map(int, rng.random(150) < 0.75)) for _ in range(3)]
    found = against_controls(list(map(int, sink)), controls)
    pairs = sink - np.mean(controls, axis=0)
    dense = scipy.stats.bootstrap((pairs,), np.mean, method="BCa", n_resamples=9999, rng=rng, batch=500).confidence_interval
    assert (found.low, found.high) == pytest.approx((dense.low, dense.high), abs=0.008)
    flips = scipy.stats.permutation_test((pairs,), np.mean, permutation_type="samples", n_resamples=4999, rng=rng, batch=500)
    assert found.p_value == pytest.approx(flips.pvalue, abs=0.02)
    assert found.mean == pytest.approx(pairs.mean())


def test_one_control_is_a_paired_difference():
    changed, unchanged = outcomes(9, 4, 80, 30)
    assert against_controls(changed, [unchanged]) == paired_difference(changed, unchanged)


def test_nothing_different_still_has_an_interval():
    found = paired_difference([1, 0, 1], [1, 0, 1])
    bound = 1 - 0.025 ** (1 / 3)  # nobody of three changed: Clopper and Pearson's upper bound of the share that would
    assert (found.mean, found.p_value, found.discordant) == (0, 1.0, 0)
    assert (found.low, found.high) == pytest.approx((-bound, bound))
    assert scipy.stats.binomtest(0, 3).proportion_ci(0.95, "exact").high == pytest.approx(bound)
    lost = paired_difference([0] * 4, [1] * 4)
    assert (lost.low, lost.high) == pytest.approx((-1, -1 + 2 * (1 - 0.025**0.25)))


@pytest.mark.parametrize(
    ("low", "mean", "high", "n", "verdict"),
    [
        (-0.019, 0.0, 0.01, 1319, "robust"),
        (-0.02, 0.0, 0.01, 1319, "undecided"),
        (-0.06, -0.04, -0.021, 1319, "degraded"),
        (-0.06, -0.04, -0.02, 1319, "undecided"),
        (-0.019, 0.0, 0.01, LEAST - 1, "undecided"),
        (-0.9, -0.8, -0.7, 20, "degraded"),
        (0.01, 0.03, 0.05, 500, "robust"),
    ],
)
def test_verdicts(low, mean, high, n, verdict):
    assert Difference(n, mean, low, high, 0.5, 7).verdict == verdict


def test_too_small_and_how_many_are_needed():
    assert LEAST == 183
    assert (1 - MARGIN) ** 183 < 0.025 < (1 - MARGIN) ** 182
    wide = Difference(100, 0.0, -0.04, 0.04, 1.0, 4)
    assert (wide.too_small, wide.needed) == (True, 400)
    few = Difference(50, 0.0, -0.01, 0.01, 1.0, 0)
    assert (few.too_small, few.needed) == (True, 183)
    near = Difference(2000, -0.015, -0.03, 0.0, 0.1, 90)  # undecided because it lies at the margin
    assert not near.too_small
    assert not Difference(20, -0.8, -0.9, -0.7, 0.0, 18).too_small


def holm_by_definition(p_values):
    """The least level at which Holm's step-down procedure rejects each."""
    ordered = sorted(p_values)
    return [max(min(1.0, (len(ordered) - rank) * ordered[rank]) for rank in range(ordered.index(p) + 1)) for p in p_values]


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    for p_values in itertools.product([0.001, 0.02, 0.5, 0.9], repeat=3):
        assert holm(p_values) == pytest.approx(holm_by_definition(list(p_values)))
    assert holm([]) == []


def simulate(rng, n, loss, spare):
    """Outcomes of n problems of which `loss` + `spare` are lost and `spare` gained on average."""
    kind = rng.random(n)
    unchanged = (kind < loss + spare).astype(int)
    changed = ((kind >= loss + spare) & (kind < loss + 2 * spare)).astype(int)
    rest = (kind >= loss + 2 * spare) & (rng.random(n) < 0.7)
    return list(changed + rest), list(unchanged + rest)


@pytest.mark.parametrize(("n", "spare"), [(183, 0.0), (200, 0.01), (500, 0.0), (500, 0.03), (1319, 0.02)])
def test_at_a_loss_of_two_points_a_verdict_is_rarely_wrong(n, spare):
    """The true loss is the margin itself: robust and degraded are both wrong, each at most 2.5 % (with slack for 200 runs)."""
    rng = np.random.default_rng(n)
    verdicts = [paired_difference(*simulate(rng, n, MARGIN, spare)).verdict for _ in range(200)]
    assert verdicts.count("robust") / 200 <= 0.025 + 0.03
    assert verdicts.count("degraded") / 200 <= 0.025 + 0.03


def test_a_real_loss_and_a_real_robustness_are_found():
    rng = np.random.default_rng(2)
    lost = [paired_difference(*simulate(rng, 500, 0.10, 0.02)).verdict for _ in range(50)]
    kept = [paired_difference(*simulate(rng, 1319, 0.0, 0.01)).verdict for _ in range(50)]
    assert lost.count("degraded") >= 45
    assert kept.count("robust") >= 45


def test_a_family_of_nulls_is_rejected_in_one_of_twenty_at_most():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(100):
        wrong += min(holm([paired_difference(*simulate(rng, 150, 0.0, 0.06)).p_value for _ in range(6)])) < 0.05
    assert wrong / 100 <= 0.05 + 0.05


def test_intervals_cover():
    rng = np.random.default_rng(4)
    found = [paired_difference(*simulate(rng, 300, 0.05, 0.04)) for _ in range(200)]
    covered = sum(one.low <= -0.05 <= one.high for one in found) / 200
    assert 0.91 <= covered <= 0.985


def test_messages():
    with pytest.raises(CallError, match="expected the same problems under both conditions, found 2 and 3"):
        paired_difference([1, 0], [1, 0, 1])
    with pytest.raises(CallError, match="expected the same problems under both conditions, found 0 and 0"):
        paired_difference([], [])
    with pytest.raises(CallError, match="expected the outcomes of at least one control, found none"):
        against_controls([1], [])
