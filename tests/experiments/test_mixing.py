import numpy as np
import pytest
from _mixing import attention_variance, effective_rank, mean_cosine, perturbation_spread

LAYERS, TOKENS, DIM = 3, 7, 5


def hidden(seed=0):
    return np.random.default_rng(seed).normal(size=(LAYERS, TOKENS, DIM))


@pytest.mark.parametrize("centred", [False, True])
def test_rank_and_cosine_are_those_of_their_formulas(centred):
    found = zip(hidden(), effective_rank(hidden(), centred), mean_cosine(hidden(), centred), strict=True)
    for layer, rank, cosine in found:
        layer = layer - layer.mean(axis=0) * centred
        values = np.linalg.svd(layer)[1]
        share = values[values > 0] / values.sum()
        assert rank == pytest.approx(np.exp(-(share * np.log(share)).sum()))
        pairs = [(layer[a], layer[b]) for a in range(TOKENS) for b in range(TOKENS) if a != b]
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
        assert cosine == pytest.approx(np.mean(cosines))


def test_a_perturbation_that_stays_spreads_0_and_one_that_reaches_all_alike_1():
    before = hidden(2)
    alone = before.copy()
    alone[:, 3] *= 1.5
    assert perturbation_spread(before, alone, 3).tolist() == [0, 0, 0]
    np.testing.assert_allclose(perturbation_spread(before, 1.5 * before, 3), 1)
    assert np.isnan(perturbation_spread(before, before, 3)).all()
    half = before.copy()
    half[:, 3] *= 1.5
    half[:, 0] *= 1.25
    np.testing.assert_allclose(perturbation_spread(before, half, 3), 0.5 / (TOKENS - 1))


def test_attention_variance_is_that_between_queries():
    attention = np.random.default_rng(3).dirichlet(np.ones(6), (2, 4))
    found = attention_variance(attention)
    for head in range(2):
        expected = np.mean([np.var(attention[head, :, key]) for key in range(6)]) * 36
        assert found[head] == pytest.approx(expected)
    assert attention_variance(np.full((4, 6), 1 / 6)) == pytest.approx(0)
    assert attention_variance(np.eye(6)) == pytest.approx(6 - 1)
