import numpy as np
import pytest

from sinkscope.statistics.intervals import LEAST_PROMPTS, interval_of_difference, interval_of_means, interval_of_pairs


def test_the_interval_is_that_of_scipys_bca():
    from scipy.stats import bootstrap, norm, t

    level = 1 - 2 * norm.cdf(-np.sqrt(40 / 39) * t.ppf(0.975, 39))  # further out, as few prompts need it
    rng = np.random.default_rng(0)
    values = np.stack([rng.exponential(size=40), rng.normal(3, 1, 40), rng.binomial(1, 0.2, 40)], axis=1)
    found = interval_of_means(values, resamples=10000)
    for number, column in enumerate(values.T):
        theirs = bootstrap(
            (column,), np.mean, method="BCa", confidence_level=level, n_resamples=10000, rng=np.random.default_rng(1)
        ).confidence_interval
        assert found.mean[number] == pytest.approx(column.mean())
        near = max(0.03 * (theirs.high - theirs.low), 1.01 / 40 if number == 2 else 0)  # shares of 40 come in steps
        assert found.low[number] == pytest.approx(theirs.low, abs=near)
        assert found.high[number] == pytest.approx(theirs.high, abs=near)
    assert found.high[0] - found.mean[0] > found.mean[0] - found.low[0]  # a skewed sample has a skewed interval


def test_few_prompts_get_no_interval_and_none_no_mean():
    values = np.random.default_rng(2).normal(size=(LEAST_PROMPTS, 2))
    values[0, 1] = np.nan
    found = interval_of_means(values)
    assert np.isnan(found.low).tolist() == [False, True]
    empty = interval_of_means(np.full((6, 1), np.nan))
    assert np.isnan([empty.mean[0], empty.low[0], empty.high[0]]).all()
    assert empty.prompts.tolist() == [0]


@pytest.mark.parametrize(("prompts", "least"), [(5, 0.88), (30, 0.93)])
def test_coverage_is_near_what_is_stated(prompts, least):
    found = interval_of_means(np.random.default_rng(6).normal(1.0, 2.0, (prompts, 500)))
    assert least <= ((found.low <= 1.0) & (found.high >= 1.0)).mean() <= 0.98


def test_pairs_are_weighted_and_never_a_prompt_with_itself():
    agreement = np.random.default_rng(7).random((7, 7))
    agreement += agreement.T
    weight = 1.0 * (np.arange(7)[:, None] + np.arange(7) > 3)
    np.fill_diagonal(agreement, 1e9)
    mean, low, high = interval_of_pairs(agreement * weight, weight)
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j and weight[i, j]]
    assert mean == pytest.approx(np.mean([agreement[pair] for pair in pairs])) and low < mean < high < 3
    few = interval_of_pairs(agreement[:3, :3], np.ones((3, 3)))
    assert few[0] == pytest.approx(agreement[:3, :3][~np.eye(3, dtype=bool)].mean())
    assert np.isnan(few[1:]).all() and np.isnan(interval_of_pairs(np.zeros((6, 6)), np.zeros((6, 6)))).all()


def test_a_difference_of_paired_prompts_is_narrower_than_of_unpaired_ones():
    rng = np.random.default_rng(8)
    first = rng.normal(0, 3, (20, 1))
    second = first + 1 + 0.1 * rng.normal(size=(20, 1))
    paired, apart = (interval_of_difference(first, second, paired=one) for one in (True, False))
    assert paired.mean[0] == pytest.approx(apart.mean[0])
    assert 0.9 < paired.low[0] < 1 < paired.high[0] < 1.1
    assert apart.low[0] < 0 < apart.high[0]
    few = interval_of_difference(first[:4], second, paired=False)
    assert np.isnan(few.low[0])
    assert few.mean[0] == pytest.approx(second.mean() - first[:4].mean())


def test_a_difference_of_unpaired_prompts_covers_zero_at_the_stated_rate():
    rng = np.random.default_rng(9)
    found = interval_of_difference(rng.normal(size=(25, 500)), rng.normal(size=(30, 500)), paired=False)
    assert 0.92 <= ((found.low <= 0) & (found.high >= 0)).mean() <= 0.98
