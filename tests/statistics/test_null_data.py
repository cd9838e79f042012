"""Error rates on data without structure: every statistic with a known value there.

What was measured at more length, with 300 sets of prompts, is in benchmarks/RESULTS.md. Triggers, choices and agreement
between prompts have such tests beside their own.
"""

import numpy as np
import pytest
from planted import APPLE, DOT, END, NEWLINE, SEVEN, SPACE, THE, make_trace, within_binomial

from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.intervals import interval_of_means
from sinkscope.statistics.statistic import values_of

pytestmark = pytest.mark.slow

POINT = Threshold(3.0)
SETS, PROMPTS, STATED = 80, 6, 0.09
TRAINING = {NEWLINE: 50, SPACE: 30, DOT: 15, SEVEN: 5, THE: 60, APPLE: 9}
TRUTH = {
    "movement.drift": 0.0,
    "movement.drift_in": 0.0,
    "movement.drift_by_depth": 0.0,
    "movement.moves_by_depth": 0.0,
    "movement.rightward": 0.5,
    "composition.times_expected": 1.0,
    "composition.frequency_correlation": 0.0,
    "groups.persistence": 0.0,
    "groups.self_attention_absorbed": 0.0,
    "concentration.number_by_depth": 0.0,
    "concentration.strength_by_depth": 0.0,
    "norms.contribution_over_attention": 1.0,
    "norms.output_contribution_over_attention": 1.0,
    **{f"norms.{kind}_norm_effect": 0.0 for kind in ("value", "key", "hidden")},
    **{f"norms.{kind}_norm_auc": 0.5 for kind in ("value", "key", "hidden", "output")},
}


def null_trace(seed, steps=12, layers=3, heads=2, width=30):
    """Two groups of queries that attend at random, in every step, layer and head anew; norms and self-attention at
    random.
    """
    rng = np.random.default_rng(seed)
    tokens = rng.choice([END, NEWLINE, SPACE, DOT, SEVEN, THE, APPLE], width)
    trace = make_trace(
        np.ones((steps, layers, heads, width)), prompt_length=14, block=4, order="random", seed=seed[0], tokens=tokens
    )
    masked = trace.masked.sum(axis=1)[:, None, None, None]
    share = rng.dirichlet(np.full(width, 0.1), (2, steps, layers, heads))
    trace.column_sums_masked = (share[0] * masked).astype(np.float32)
    trace.column_sums = (share[0] * masked + share[1] * (width - masked)).astype(np.float32)
    left = 1 - trace.column_sums.max(axis=-1, keepdims=True) / width
    trace.self_attention = (0.05 * left * rng.random(trace.column_sums.shape)).astype(np.float32)
    for name in ("value_norms", "key_norms"):
        setattr(trace, name, (rng.random((steps, layers, 1, width)) + 0.5).astype(np.float32))
    trace.output_norms = (rng.random((steps, layers, heads, width)) + 0.5).astype(np.float32)
    trace.hidden_norms = (rng.random((steps, layers, width)) + 0.5).astype(np.float32)
    return trace


@pytest.fixture(scope="module")
def fired():
    """{name and place: in how many sets of prompts the interval leaves out the truth}, and of how many."""
    rows = [
        [values_of(summarise(null_trace([one, number]), [POINT], training=TRAINING)) for number in range(SETS)]
        for one in range(PROMPTS)
    ]
    keys = [key for key in rows[0][0] if key[0] in TRUTH]
    found = np.array([[[one.get(key, np.nan) - TRUTH[key[0]] for key in keys] for one in row] for row in rows])
    found = interval_of_means(found.reshape(PROMPTS, -1), resamples=1000)
    low, high = found.low.reshape(SETS, -1), found.high.reshape(SETS, -1)
    outside = (low > 0) | (high < 0)
    return {key: (int(outside[:, at].sum()), int((~np.isnan(low[:, at])).sum())) for at, key in enumerate(keys)}


def test_every_statistic_leaves_out_its_null_value_at_no_more_than_the_stated_rate(fired):
    assert {name for name, _ in fired} == set(TRUTH)
    for key, (count, sets) in fired.items():
        assert sets > SETS / 2, key
        assert within_binomial(count, sets, STATED), (key, count, sets)


def test_all_of_them_together_are_neither_anxious_nor_blind(fired):
    rate = sum(count for count, _ in fired.values()) / sum(sets for _, sets in fired.values())
    assert 0.03 < rate < STATED
