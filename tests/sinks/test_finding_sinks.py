import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import dense_uniform

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import HidePositions
from sinkscope.sinks import excess_of, find_sinks, is_sink, last_query_window
from sinkscope.statistics import summarise
from sinkscope.statistics.concentration import Evenness
from sinkscope.statistics.groups import GroupSinks
from sinkscope.statistics.movement import AnswerMain

STEPS, LAYERS, HEADS, KEYS = 5, 2, 3, 14


def make_trace(causal=False, lengths=(14, 14, 12, 13, 14), seed=0):
    """What `find_sinks` reads of a trace, with NaN and −1 beyond each step's length."""
    rng = np.random.default_rng(seed)
    columns = np.full((STEPS, LAYERS, HEADS, KEYS), np.nan, np.float32)
    tokens = np.full((STEPS, KEYS), -1, np.int32)
    for step, length in enumerate(lengths):
        share = rng.random((LAYERS, HEADS, length)) ** 8
        columns[step, ..., :length] = length * share / share.sum(axis=-1, keepdims=True)
        tokens[step, :length] = rng.integers(0, 500, length)
    last_query = columns / np.nansum(columns, axis=-1, keepdims=True)
    return SimpleNamespace(steps=STEPS, causal=causal, column_sums=columns, tokens=tokens, last_query=last_query)


@pytest.mark.parametrize(("epsilon", "unit"), [(1.0, "queries"), (3.0, "queries"), (25.0, "percent"), (0.2, "mean")])
def test_every_sink_of_every_step_layer_and_head_is_found_in_order(epsilon, unit):
    trace = make_trace()
    sinks = find_sinks(trace, excess=epsilon, unit=unit)
    expected = []
    for step in range(STEPS):
        for layer in range(LAYERS):
            for head in range(HEADS):
                columns = trace.column_sums[step, layer, head]
                total = np.nansum(columns)
                share = columns * {"queries": 1, "percent": 100 / total, "mean": 1 / total}[unit]
                for j in np.flatnonzero(~np.isnan(columns)):
                    excess = share[j] - np.nanmean(np.delete(share, j))
                    if excess > epsilon:
                        expected.append((step, layer, head, j, trace.tokens[step, j], columns[j], excess))
    assert 0 < len(expected) < STEPS * LAYERS * HEADS * 3
    assert len(sinks) == len(expected)
    whole = np.array([row[:5] for row in expected])
    for number, name in enumerate(("step", "layer", "head", "position", "token")):
        assert getattr(sinks, name).tolist() == whole[:, number].tolist()
    np.testing.assert_array_equal(sinks.column_sum, [row[5] for row in expected])  # in queries, whatever the unit
    assert_close(sinks.excess, [row[6] for row in expected], terms=KEYS, dtype=torch.float32)
    assert sinks.selected_share == pytest.approx(len(expected) / ((14 + 14 + 12 + 13 + 14) * LAYERS * HEADS))
    assert (sinks.threshold, sinks.unit) == (epsilon, unit)
    assert sinks.shape == (STEPS, LAYERS, HEADS, KEYS)
    rows = json.loads(json.dumps(sinks.rows()))
    assert [row["position"] for row in rows] == sinks.position.tolist()
    assert [row["excess"] for row in rows] == pytest.approx(sinks.excess, abs=1e-4)
    assert sinks.source == "column_sums"
    np.testing.assert_array_equal(sinks.columns, trace.column_sums)
    np.testing.assert_array_equal(sinks.moving, is_sink(trace.column_sums, epsilon, unit))


@pytest.mark.parametrize(("epsilon", "unit"), [(1.0, "queries"), (30.0, "percent")])
def test_movement_of_a_causal_trace_is_read_from_its_last_queries(epsilon, unit):
    trace = make_trace(causal=True)
    sinks = find_sinks(trace, epsilon, unit)
    window = last_query_window(trace.last_query, 16)
    assert sinks.source == "last_query, window of 16"
    np.testing.assert_array_equal(sinks.columns, window)
    selected, moving, *_ = dense_uniform(trace, epsilon, unit)
    np.testing.assert_array_equal(sinks.moving, moving)
    assert (moving != selected).any() and len(sinks) == selected.sum()  # those of the column sums
    published = find_sinks(trace, epsilon, unit, "eq3")
    assert len(published) == is_sink(trace.column_sums, epsilon, unit).sum() != len(sinks)


@pytest.mark.parametrize(("excess", "unit", "says"), [(14.0, "queries", "by 14"), (100.0, "percent", "by 100")])
def test_an_excess_that_can_never_hold_is_refused(excess, unit, says):
    with pytest.raises(CallError, match=f"can never hold here.*{says}$"):
        find_sinks(make_trace(), excess, unit)
    find_sinks(make_trace(), excess=0.99 * min(excess, 14 if unit == "queries" else 100), unit=unit)


@pytest.mark.parametrize("keep", ["columns", "top"])
def test_behind_a_cache_the_mean_is_over_the_queries_that_were_computed(diffusion, tmp_path, keep):
    with sinkscope.recording(diffusion, out=tmp_path / keep, keep=keep):
        sinkscope.generate(diffusion, "Q: 1\nA:", length=16, steps=16, block=4, cache="fast-dllm-dual")
    trace = sinkscope.open_trace(tmp_path / keep)
    sinks, columns = sinkscope.find_sinks(trace, excess=0.1), np.asarray(trace.column_sums[:])
    computed = np.nansum(columns, axis=-1).round()
    assert {4, columns.shape[-1]} == set(computed.ravel().tolist())
    np.testing.assert_allclose(
        sinks.visible_query_mean, sinks.column_sum / computed[sinks.step, sinks.layer, sinks.head], rtol=1e-5
    )
    means = columns / computed[..., None]
    np.testing.assert_array_equal(summarise(trace).kept(Evenness).over_third, means.max(axis=-1) > 0.3)


def test_behind_a_cache_answers_are_scaled_by_the_queries_that_were_computed(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: 1\nA:", length=16, steps=16, block=4, cache="fast-dllm-dual")
    trace = sinkscope.open_trace(tmp_path / "t")
    prompt, length = trace.manifest["prompt_length"], trace.column_sums.shape[-1]
    summary = summarise(trace)
    found, groups = summary.kept(AnswerMain), summary.kept(GroupSinks)
    for step in range(trace.steps):
        columns, of_prompt = trace.column_sums[step], trace.column_sums_prompt[step]
        whole = round(float(columns[0, 0].sum())) == length
        scaled = (columns - of_prompt) * length / (length - prompt if whole else 4)
        assert_close(found.queries[step], excess_of(scaled).max(axis=-1), terms=4 * length, dtype=torch.float32)
        if not whole:  # four queries are too few for a group
            assert np.isnan(groups.excess[step]).all() and (groups.position[step] < 0).all()


@pytest.mark.parametrize("keep", ["columns", "top"])
def test_under_a_rule_that_zeroes_keys_the_mean_is_over_all_queries(diffusion, tmp_path, keep):
    rule = HidePositions([0, 1], effect="zero")
    with sinkscope.recording(diffusion, out=tmp_path / keep, keep=keep), rule(diffusion):
        sinkscope.generate(diffusion, "Q: 1\nA:", length=8, steps=4, block=8)
    trace = sinkscope.open_trace(tmp_path / keep)
    sinks, length = sinkscope.find_sinks(trace, excess=0.1), int(trace.lengths[0])
    assert len(sinks) and np.nansum(trace.column_sums[:], axis=-1).max() < length - 0.6
    np.testing.assert_allclose(sinks.visible_query_mean, sinks.column_sum / length, rtol=1e-5)
