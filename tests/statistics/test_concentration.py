import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import make_trace, random_columns

from sinkscope.sinks import excess_of, is_sink
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.concentration import Concentration, Evenness, evenness_values
from sinkscope.statistics.step import count_above
from sinkscope.statistics.thresholds import EPSILONS

THRESHOLDS = [Threshold(3.0), Threshold(5.0, "percent")]


def ragged(seed=0, width=40):
    columns = random_columns(seed, steps=7, layers=3, heads=2, width=width, sharpness=0.3).astype(np.float32)
    columns[2, ..., 33:] = np.nan
    trace = make_trace(columns)
    trace.lengths = (~np.isnan(columns[:, 0, 0])).sum(axis=-1)
    trace.tokens[2, 33:] = -1
    return trace


def test_entropy_and_gini_are_those_of_their_formulas():
    trace = ragged()
    found = summarise(trace, THRESHOLDS).kept(Evenness)
    for place in np.ndindex(7, 3, 2):
        columns = trace.column_sums[place]
        columns = columns[~np.isnan(columns)].astype(np.float64)
        share = columns / columns.sum()
        entropy = -sum(p * np.log(p) for p in share if p > 0) / np.log(len(share))
        gini = np.abs(share[:, None] - share).mean() / (2 * share.mean())
        assert_close(found.entropy[place], entropy, terms=2 * len(columns), dtype=torch.float32)
        assert_close(found.gini[place], gini, terms=3 * len(columns), dtype=torch.float32)


def test_the_rate_of_gu_is_that_of_the_definition():
    trace = ragged(1)
    trace.column_sums[0, 0, 0] = 0.1
    trace.column_sums[0, 0, 0, 4] = 30
    trace.column_sums[3, 0, 1, 0] = 30
    found = summarise(trace, THRESHOLDS).kept(Evenness)
    over = trace.column_sums / trace.lengths[:, None, None, None] > 0.3
    np.testing.assert_array_equal(found.over_third, over.any(axis=-1))
    np.testing.assert_array_equal(found.first_over_third, over[..., 0])
    assert 0 < over[..., 0].mean() < over.any(axis=-1).mean() < 1


def causal_trace(lengths=(60, 63, 64, 66, 70), heads=2):
    """Rows of attention by hand: each query attends to itself; head 1 of layer 0 gives the first token .4, head 0 of
    layer 1 the fifth.
    """
    columns = np.full((len(lengths), 2, heads, max(lengths)), np.nan, np.float32)
    rows = columns.copy()
    for step, length in enumerate(lengths):
        for layer, head in np.ndindex(2, heads):
            attention = np.zeros((length, length))
            attention[np.arange(length), np.arange(length)] = 1
            for first, place in (((0, 1), 0), ((1, 0), 4)):
                if (layer, head) == first:
                    attention *= 0.6
                    attention[:, place] += 0.4
            columns[step, layer, head, :length], rows[step, layer, head, :length] = attention.sum(axis=0), attention[-1]
    trace = make_trace(columns, prompt_length=60, block=0)
    trace.causal, trace.last_query, trace.lengths = True, rows, np.array(lengths)
    trace.tokens = np.where(np.arange(max(lengths)) < trace.lengths[:, None], 7, -1)
    return trace


def test_only_keys_that_64_queries_see_count_in_the_rate_of_an_autoregressive_model():
    trace = causal_trace()
    prompt = summarise(trace, THRESHOLDS)
    values = evenness_values(prompt)
    any_key, first = [], []
    for step, length in enumerate(trace.lengths):
        for columns in trace.column_sums[step].reshape(4, -1):
            alpha = [columns[key] / (length - key) for key in range(length)]
            any_key += [max(alpha[: length - 63]) > 0.3] if length >= 64 else []
            first.append(alpha[0] > 0.3)
    assert values["concentration.gu_rate", ()] == pytest.approx(np.mean(any_key)) == pytest.approx(4 / 12)
    assert values["concentration.gu_rate_first", ()] == pytest.approx(np.mean(first)) == pytest.approx(1 / 4)
    assert values["concentration.gu_rate_first_in", (("layer", 0),)] == 1 / 2
    assert np.isnan(prompt.kept(Evenness).over_third[:, 0, 0]).tolist() == [True, True, False, False, False]


def test_a_short_canvas_has_no_rate_but_one_of_its_first_token():
    values = evenness_values(summarise(causal_trace((61, 62, 63)), THRESHOLDS))
    assert np.isnan(values["concentration.gu_rate", ()])
    assert values["concentration.gu_rate_first_over_steps", (("third", "last"),)] == 1 / 4


def test_the_curve_counts_columns_that_do_not_exceed_epsilon():
    trace = ragged(2)
    values = Concentration().values(summarise(trace, THRESHOLDS))
    columns = (~np.isnan(trace.column_sums)).sum()
    for unit in ("queries", "percent"):
        for epsilon in EPSILONS[::2].tolist():
            expected = 1 - is_sink(trace.column_sums, epsilon, unit).sum() / columns
            for positions in ("any", "up to 64"):
                at = (("positions", positions), ("unit", unit), ("excess", epsilon))
                assert values["epsilon.not_sinks", at] == pytest.approx(expected, abs=1e-9)
    assert (EPSILONS[0], EPSILONS[1], EPSILONS[-1]) == (0, 0.25, 10)
    for layer, counted in enumerate(count_above(excess_of(trace.column_sums).swapaxes(0, 1))):
        expected = [is_sink(trace.column_sums, epsilon)[:, layer].sum() for epsilon in EPSILONS.tolist()]
        assert counted.tolist() == expected
