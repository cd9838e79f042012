"""Statistics beside dense versions (searches, enumerations, textbooks), and their error rates on simulated nulls."""

import itertools
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from sinkscope.evaluation.paired_tests import (
    LEAST,
    MARGIN,
    Difference,
    against_controls,
    holm,
    paired_difference,
    pass_at_k,
)


def test_pass_at_k_is_the_share_of_draws_with_a_correct_one():
    for n, correct, k in ((1, 1, 1), (5, 0, 2), (6, 2, 3), (6, 5, 3), (4, 4, 4)):
        draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def outcomes(lost, gained, both, neither):
    """(changed, unchanged) with these numbers of pairs."""
    rest = [1] * both + [0] * neither
    return [0] * lost + [1] * gained + rest, [1] * lost + [0] * gained + rest


def score(gained, lost, n, difference):
    """z of the hypothesis that the shares differ by so much: the rest of the likelihood maximised by search (Tango
    1998)."""

    def surprise(q):  # q: share of problems that are lost, q + difference: that are gained
        shares = [q + difference, q, 1 - 2 * q - difference]
        return -sum(
            scipy.special.xlogy(count, share)
            for count, share in zip((gained, lost, n - gained - lost), shares, strict=True)
        )

    low, high = max(0.0, -difference), (1 - difference) / 2
    q = scipy.optimize.minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return (gained - lost - n * difference) / math.sqrt(n * (2 * q + difference - difference**2))


CELLS = [(9, 4, 80, 30), (1, 0, 20, 19), (0, 3, 50, 7), (40, 39, 1000, 240), (5, 0, 43, 0), (44, 0, 0, 4)]


@pytest.mark.parametrize("cells", CELLS)
def test_the_interval_is_what_the_score_test_does_not_reject_and_the_test_is_mcnemars(cells):
    found = paired_difference(*outcomes(*cells))
    lost, gained = cells[:2]
    assert score(gained, lost, sum(cells), found.low) == pytest.approx(1.959963984540054, abs=1e-4)
    assert score(gained, lost, sum(cells), found.high) == pytest.approx(-1.959963984540054, abs=1e-4)
    assert found.mean == pytest.approx((gained - lost) / sum(cells))
    exact = min(1.0, 2 * sum(math.comb(lost + gained, i) for i in range(min(lost, gained) + 1)) / 2 ** (lost + gained))
    assert found.p_value == pytest.approx(exact, rel=1e-9)
    assert found.p_margin == pytest.approx(
        2 * scipy.stats.norm.sf(abs(score(gained, lost, sum(cells), -0.02))), rel=1e-4
    )


def test_several_controls_are_averaged_and_two_problems_added():
    rng = np.random.default_rng(1)
    sink, controls = (rng.random(150) < 0.6).astype(int).tolist(), (rng.random((3, 150)) < 0.75).astype(int).tolist()
    found = against_controls(sink, controls)
    pairs = sink - np.mean(controls, axis=0)
    more = np.concatenate([pairs, [0.5**0.5, -(0.5**0.5)]])  # one problem between the two: half a gain and half a loss
    reach = 1.959963984540054 * more.std() / math.sqrt(len(more))
    assert (found.low, found.high) == pytest.approx((more.mean() - reach, more.mean() + reach))
    z = (more.mean() + 0.02) / (reach / 1.959963984540054)
    assert found.p_margin == pytest.approx(2 * scipy.stats.norm.sf(abs(z)))
    assert (found.mean, found.discordant) == (pytest.approx(pairs.mean()), int((pairs != 0).sum()))


@pytest.mark.parametrize(("n", "sink", "control"), [(48, 0.97, 0.97), (164, 0.5, 0.95)])
def test_intervals_of_several_controls_cover(n, sink, control):
    rng, missed = np.random.default_rng(n), np.zeros(2)
    for _ in range(400):
        found = against_controls(
            (rng.random(n) < sink).astype(int).tolist(), (rng.random((3, n)) < control).astype(int).tolist()
        )
        missed += (found.low > sink - control, found.high < sink - control)
    assert max(missed / 400) <= 0.025 + 0.03


def test_several_controls_are_tested_by_every_assignment_of_the_runs():
    for runs in (
        [[0, 1, 1, 0, 1], [1, 1, 0, 1, 1], [1, 0, 1, 1, 1]],
        [[0, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 1]],
    ):
        every = np.array(
            [sum(one) for one in itertools.product(*np.transpose(runs))]
        )  # of each problem, any run may be the sinks'
        tails = (every <= sum(runs[0])).mean(), (every >= sum(runs[0])).mean()
        assert against_controls(runs[0], runs[1:]).p_value == pytest.approx(min(1, 2 * min(tails)))


def test_nothing_different_still_has_an_interval():
    found, z = paired_difference([1, 0, 1], [1, 0, 1]), 1.959963984540054
    assert (found.mean, found.p_value, found.discordant) == (0, 1.0, 0)
    assert (found.low, found.high) == pytest.approx(
        (-z * z / (3 + z * z), z * z / (3 + z * z))
    )  # Wilson's of none in three
    lost = paired_difference([0] * 4, [1] * 4)
    assert (lost.low, lost.high) == pytest.approx((-1, -1 + 2 * z * z / (4 + z * z)), abs=1e-6)


def test_verdicts_and_how_many_problems_are_needed():
    for low, high, n, verdict in (
        (-0.02, 0.01, 1319, "undecided"),
        (-0.06, -0.021, 1319, "degraded"),
        (-0.06, -0.02, 1319, "undecided"),
        (-0.9, -0.7, 20, "degraded"),
    ):
        assert Difference(n, (low + high) / 2, low, high, 0.5, 7, 0.0).verdict == verdict
    assert LEAST == 189
    for n, verdict in ((LEAST - 1, "undecided"), (LEAST, "robust")):
        assert paired_difference([1] * n, [1] * n).verdict == verdict
    wide = paired_difference(*outcomes(4, 4, 92, 0))
    assert wide.too_small
    for n, verdict in ((wide.needed - 25, "undecided"), (wide.needed + 25, "robust")):
        changed = round(0.04 * n)
        assert paired_difference(*outcomes(changed, changed, n - 2 * changed, 0)).verdict == verdict
    few = paired_difference([1] * 50, [1] * 50)
    assert (few.too_small, few.needed) == (True, LEAST)
    assert not Difference(2000, -0.015, -0.03, 0.0, 0.1, 90, 1.0).too_small  # undecided because it lies at the margin


def holm_by_definition(p_values):
    """The least level at which Holm's step-down procedure rejects each."""
    ordered = sorted(p_values)
    return [
        max(min(1.0, (len(ordered) - rank) * ordered[rank]) for rank in range(ordered.index(p) + 1)) for p in p_values
    ]


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


@pytest.mark.parametrize(("n", "spare"), [(48, 0.03), (500, 0.0), (1319, 0.02)])
def test_at_a_loss_of_two_points_a_verdict_is_rarely_wrong(n, spare):
    """The true loss is the margin itself: robust and degraded are both wrong, each at most 2.5 % (with slack for 400
    runs)."""
    rng = np.random.default_rng(n)
    verdicts = [paired_difference(*simulate(rng, n, MARGIN, spare)).verdict for _ in range(400)]
    assert verdicts.count("robust") / 400 <= 0.025 + 0.02
    assert verdicts.count("degraded") / 400 <= 0.025 + 0.02
