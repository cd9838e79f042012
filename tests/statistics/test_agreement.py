import itertools

import numpy as np
import pytest
from planted import DOT, NEWLINE, THE, make_trace, sink_at, values_at, within_binomial

from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.agreement import Agreement, Pattern, head_agreement, prompt_agreement

POINT = Threshold(3.0)


def profile(position, **more):
    return summarise(make_trace(sink_at(position), **more), [POINT])


def test_agreement_of_heads_is_that_of_all_pairs():
    position = np.random.default_rng(0).integers(-1, 5, (9, 2, 3))
    values = values_at(Agreement(), profile(position), POINT)
    same, other = [], []
    for step in range(9):
        for a, b in itertools.combinations(np.ndindex(2, 3), 2):
            p, q = position[(step, *a)], position[(step, *b)]
            if p >= 0 and q >= 0:
                (same if a[0] == b[0] else other).append(p == q)
    assert values["agreement.same_layer", ()] == pytest.approx(np.mean(same))
    assert values["agreement.other_layers", ()] == pytest.approx(np.mean(other))


def test_a_pattern_is_the_share_of_steps_by_tenth_of_the_canvas_and_class():
    tokens = np.full(30, THE)
    tokens[3], tokens[8] = NEWLINE, DOT
    position = np.full((8, 2, 3), -1)
    position[:6, 1, 2] = [3, 3, 3, 8, 29, 29]  # 29 is masked
    found = Pattern.of(profile(position, tokens=tokens), POINT)
    assert found.place[1, 2].tolist() == pytest.approx([0, 0.5, 1 / 6, 0, 0, 0, 0, 0, 0, 1 / 3])
    assert found.token[1, 2].tolist() == pytest.approx([1 / 3, 0.5, 0, 1 / 6, 0, 0, 0])  # mask, newline, …, punctuation
    assert not found.place.reshape(6, 10)[:5].any()


def test_agreement_of_prompts_is_that_of_all_pairs_of_heads():
    rng = np.random.default_rng(1)
    patterns = rng.dirichlet(np.ones(4), (5, 6))
    patterns[rng.random((5, 6)) < 0.3] = 0
    own, weight, over, over_weight = head_agreement(patterns)
    for i, j in np.ndindex(5, 5):
        there = [[h for h in range(6) if patterns[one, h].any()] for one in (i, j)]
        same = [patterns[i, h] @ patterns[j, h] for h in there[0] if h in there[1]]
        other = [patterns[i, h] @ patterns[j, k] for h in there[0] for k in there[1] if h != k]
        assert weight[i, j] == len(same)
        assert own[i, j] == pytest.approx(np.mean(same))
        assert over[i, j] == pytest.approx(np.mean(same) - np.mean(other)) and over_weight[i, j] == len(same)


def test_heads_that_are_shuffled_in_every_prompt_agree_no_better_than_others_at_the_stated_rate():
    low, means = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        base = rng.dirichlet(np.full(5, 0.3), 12)
        shuffled = [base[None, rng.permutation(12)] for _ in range(8)]
        found = prompt_agreement([Pattern(one, one) for one in shuffled])["agreement.prompts_place_over_other_heads"]
        means.append(found[0])
        low.append(found[1])
    assert within_binomial(int((np.array(low) > 0).sum()), 60, rate=0.05)
    assert np.mean(means) == pytest.approx(0, abs=0.02)
