import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import make_trace, random_columns, sink_at

from sinkscope.sinks import excess_of, is_sink, sink_rates
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.averages import depth_slope, thirds
from sinkscope.statistics.concentration import (
    Evenness,
    concentration_values,
    evenness_values,
    length_class,
    not_sink_values,
)
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


@pytest.mark.parametrize("number", [0, 1])
def test_counts_and_shares_are_those_of_a_loop(number):
    trace = ragged()
    found = summarise(trace, THRESHOLDS)
    point = THRESHOLDS[number]
    selected = is_sink(trace.column_sums, point.excess, point.unit)
    for place in np.ndindex(7, 3, 2):
        columns = trace.column_sums[place]
        assert found.counts(point)[place] == selected[place].sum()
        assert_close(
            found.shares(point)[place],
            columns[selected[place]].sum() / np.nansum(columns),
            terms=len(columns),
            dtype=torch.float32,
        )
        assert found.by_step.top[place] == np.nanargmax(columns)
        assert found.by_step.largest[place] == np.nanmax(columns)


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


def test_columns_of_a_head_without_attention_are_equal_ones():
    trace = ragged()
    trace.column_sums[:, 1] = np.where(np.isnan(trace.column_sums[:, 1]), np.nan, 0)
    trace.column_sums[:, 2] = np.where(np.isnan(trace.column_sums[:, 2]), np.nan, 1e-39)
    found = summarise(trace, THRESHOLDS).kept(Evenness)
    np.testing.assert_allclose(found.gini[:, 1:], 0, atol=1e-5)
    np.testing.assert_allclose(found.entropy[:, 1:], 1, atol=1e-5)


def test_the_rate_of_gu_is_that_of_the_definition():
    trace = ragged(1)
    trace.column_sums[0, 0, 0] = 0.1
    trace.column_sums[0, 0, 0, 4] = 30
    trace.column_sums[3, 0, 1, 0] = 30
    found, rates = summarise(trace, THRESHOLDS).kept(Evenness), sink_rates(trace.column_sums, causal=False)
    np.testing.assert_allclose(found.over_third.mean(axis=(1, 2)), rates.any_key)
    np.testing.assert_allclose(found.first_over_third.mean(axis=(1, 2)), rates.first_key)
    assert 0 < rates.first_key.max() < 1


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
    rates = sink_rates(trace.column_sums, causal=True)
    kept = prompt.kept(Evenness)
    np.testing.assert_allclose(kept.over_third.mean(axis=(1, 2)), rates.any_key)
    np.testing.assert_allclose(kept.first_over_third.mean(axis=(1, 2)), rates.first_key)
    assert np.isnan(rates.any_key).tolist() == [True, True, False, False, False]


def test_a_short_canvas_has_no_rate_but_one_of_its_first_token():
    values = evenness_values(summarise(causal_trace((61, 62, 63)), THRESHOLDS))
    assert np.isnan(values["concentration.gu_rate", ()])
    assert values["concentration.gu_rate_first_over_steps", (("third", "last"),)] == 1 / 4


def test_the_curve_counts_columns_that_do_not_exceed_epsilon():
    trace = ragged(2)
    values = not_sink_values(summarise(trace, THRESHOLDS))
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


def test_an_excess_that_is_epsilon_itself_is_no_sink():
    columns = np.full((1, 1, 1, 5), 0.5)
    columns[..., 2] = 3.0  # an excess of 2.5 exactly
    values = not_sink_values(summarise(make_trace(columns, prompt_length=1, block=4), THRESHOLDS))
    at = {
        excess: values["epsilon.not_sinks", (("positions", "any"), ("unit", "queries"), ("excess", excess))]
        for excess in (2.0, 2.5, 3.0)
    }
    assert at == {2.0: pytest.approx(0.8), 2.5: 1.0, 3.0: 1.0}


def test_fewer_and_stronger_sinks_in_depth_are_recovered():
    steps, layers, width = 9, 4, 60
    columns = np.ones((steps, layers, 2, width))
    for layer in range(layers):
        for sink in range(4 - layer):  # 4, 3, 2, 1 sinks of 6, 8, 10, 12 queries' worth
            columns[:, layer, :, 7 * sink] = 6 + 2 * layer
    values = concentration_values(summarise(make_trace(columns, block=10), THRESHOLDS), THRESHOLDS[0])
    assert values["concentration.sinks_per_head", ()] == 2.5
    assert [values["concentration.sinks_per_head_in", (("layer", layer),)] for layer in range(4)] == [4, 3, 2, 1]
    assert [values["concentration.strength_in", (("layer", layer),)] for layer in range(4)] == [6, 8, 10, 12]
    assert values["concentration.number_by_depth", ()] == pytest.approx(-3)
    assert values["concentration.strength_by_depth", ()] == pytest.approx(6)
    assert values["concentration.layers_without", ()] == 0


def test_sinks_that_vanish_are_seen_over_the_steps():
    position = np.where(np.arange(12) < 4, 6, -1)
    values = concentration_values(summarise(make_trace(sink_at(position)), THRESHOLDS), THRESHOLDS[0])
    counts = [
        values["concentration.sinks_per_head_over_steps", (("third", third),)] for third in ("first", "middle", "last")
    ]
    assert counts == [1, 0, 0]
    assert values["concentration.share_on_sinks_over_steps", (("third", "first"),)] == pytest.approx(12 / 30, abs=1e-4)
    assert values["concentration.layers_without", ()] == pytest.approx(8 / 12)


def test_thirds_hold_every_step_once():
    for steps in range(1, 12):
        parts = [list(range(steps))[part] for part in thirds(steps).values()]
        assert [one for part in parts for one in part] == list(range(steps))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_depth_slope_needs_two_layers():
    assert np.isnan(depth_slope(np.array([3.0])))
    assert depth_slope(np.array([1.0, 2.0, 3.0])) == pytest.approx(2)


def test_without_structure_nothing_falls_or_rises_with_depth():
    from sinkscope.statistics.intervals import interval_of_means

    slopes = []
    for seed in range(120):
        prompts = (random_columns(1000 * seed + one, steps=3, layers=4, width=20) for one in range(12))
        slopes.append([depth_slope((columns.max(axis=-1)).mean(axis=(0, 2))) for columns in prompts])
    found = interval_of_means(np.array(slopes).T, resamples=1000)
    outside = ((found.low > 0) | (found.high < 0)).sum()
    assert outside <= 120 * 0.05 + 3 * np.sqrt(120 * 0.05 * 0.95) + 4  # 12 prompts: coverage is some 92 %


@pytest.mark.parametrize(("positions", "name"), [(1, 64), (64, 64), (65, 128), (128, 128), (129, 256), (512, 512)])
def test_canvases_are_classed_by_the_next_power_of_two(positions, name):
    assert length_class(positions) == f"up to {name}"
