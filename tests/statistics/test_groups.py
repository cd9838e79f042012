import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import extras, make_trace, sink_at, values_at

from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.groups import LEAST_QUERIES, Groups, GroupSinks
from sinkscope.statistics.movement import AnswerMain

POINT = Threshold(3.0)


def split_trace(masked_at, unmasked_at, steps=20, width=40, seed=0, strength=0.5):
    """Masked queries give ``strength`` of their attention to one place, unmasked queries to another."""
    trace = make_trace(np.ones((steps, 2, 3, width)), prompt_length=10, block=5, seed=seed)
    masked = trace.masked.sum(axis=1)
    rest = np.random.default_rng(seed).dirichlet(np.full(width, 50.0), (2, steps, 2, 3))
    both = []
    for number, (at, queries) in enumerate(((masked_at, masked), (unmasked_at, width - masked))):
        share = (1 - strength) * rest[number]
        share[..., at] += strength
        both.append(share * queries[:, None, None, None])
    trace.column_sums = (both[0] + both[1]).astype(np.float32)
    trace.column_sums_masked = both[0].astype(np.float32)
    return trace


def test_a_groups_sink_is_the_argmax_of_its_mean_column_from_eight_queries_on():
    trace = split_trace(30, 4, steps=30)
    found = summarise(trace, [POINT]).kept(GroupSinks)
    masked = trace.masked.sum(axis=1)
    assert masked.min() < LEAST_QUERIES < masked.max()
    for step, layer, head in np.ndindex(30, 2, 3):
        for group, (columns, queries) in enumerate(
            (
                (trace.column_sums_masked[step, layer, head], masked[step]),
                ((trace.column_sums - trace.column_sums_masked)[step, layer, head], 40 - masked[step]),
            )
        ):
            place = (step, group, layer, head)
            if queries < 8:
                assert found.position[place] == -1
                assert np.isnan(found.excess[place])
                continue
            mean = columns / queries
            assert found.position[place] == mean.argmax()
            scaled = 40 * mean
            expected = scaled.max() - np.delete(scaled, scaled.argmax()).mean()
            assert_close(found.excess[place], expected, terms=len(scaled), dtype=torch.float32)


def test_attention_that_went_to_no_key_is_no_part_of_the_mean():
    """Of a key whose weights are zeroed, or a sink token, columns of a group add up to less than its queries."""
    trace = split_trace(30, 4)
    trace.column_sums, trace.column_sums_masked = (
        trace.column_sums * np.float32(0.5),
        trace.column_sums_masked * np.float32(0.5),
    )
    found = summarise(trace, [POINT]).kept(GroupSinks)
    masked = trace.masked.sum(axis=1)
    for step in np.flatnonzero(masked >= LEAST_QUERIES):
        scaled = 40 * trace.column_sums_masked[step, 1, 2] / masked[step]
        expected = scaled.max() - np.delete(scaled, scaled.argmax()).mean()
        assert_close(found.excess[step, 0, 1, 2], expected, terms=len(scaled), dtype=torch.float32)
        assert found.percent[step, 0, 1, 2] == pytest.approx(100 * expected / scaled.sum(), rel=1e-5)


def test_written_queries_are_told_from_the_prompts():
    """Of a prompt of 10 on a canvas of 40, 8 are written from step 8 on, and 8 masked up to step 22."""
    trace = split_trace(30, 4, steps=30)
    assert np.isnan(values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.split_from_prompt", ()])
    unmasked = trace.column_sums - trace.column_sums_masked
    trace.column_sums_prompt = prompt = np.full(trace.column_sums.shape, 0.1, np.float32)
    prompt[..., 4] = 6.1
    trace.column_sums = trace.column_sums_masked + prompt + unmasked
    trace.column_sums[..., 17] += 30 - trace.masked.sum(axis=1)[:, None, None]
    profile = summarise(trace, [POINT])
    values, position = values_at(Groups(), profile, POINT), profile.kept(GroupSinks).position
    columns = trace.column_sums - trace.column_sums_masked - prompt
    few = trace.lengths - trace.masked.sum(axis=1) - 10 < 8
    expected = np.where(few[:, None, None], -1, columns.argmax(-1))
    np.testing.assert_array_equal(position[:, 3], expected)
    assert (position[:, 2] == 4).all() and values["groups.split_from_written", ()] == 1
    assert values["groups.split_prompt_written", ()] == np.mean(position[8:, 3] != 4)
    trace.masked[:, 3] = 1  # of the prompt: nothing counts as written then
    assert (summarise(trace, [POINT]).kept(GroupSinks).position[:, 3] == -1).all()


def test_a_sink_whose_share_does_not_change_has_no_slope_against_it():
    columns = sink_at(np.full(24, 5), strength=12, noise=0.5).astype(np.float32)  # what varies is rounding
    trace = make_trace(columns, **extras(columns))
    assert np.isnan(values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.self_attention_absorbed", ()])


def test_behind_a_cache_a_group_has_the_queries_that_were_computed():
    """Half of all attention goes to a sink token, so that columns do not tell how many queries there were."""
    trace = split_trace(30, 4)
    masked, computed = trace.masked.astype(bool), np.arange(40) >= np.arange(20)[:, None] % 7
    counts = {
        "masked": (masked & computed).sum(1),
        "unmasked": (~masked & computed).sum(1),
        "prompt": computed[:, :10].sum(1),
    }
    whole = {"masked": masked.sum(1), "unmasked": (~masked).sum(1)}
    groups = {"masked": trace.column_sums_masked, "unmasked": trace.column_sums - trace.column_sums_masked}
    mine = {name: groups[name] * np.float32(0.5) * (counts[name] / whole[name])[:, None, None, None] for name in groups}
    trace.column_sums, trace.column_sums_masked = mine["masked"] + mine["unmasked"], mine["masked"]
    trace.column_sums_prompt = mine["unmasked"] * (counts["prompt"] / counts["unmasked"])[:, None, None, None].astype(
        np.float32
    )
    trace.hidden_norms = np.where(computed[:, None], 1, np.nan).astype(np.float32).repeat(2, axis=1)
    profile = summarise(trace, [POINT])
    found, answer = profile.kept(GroupSinks), profile.kept(AnswerMain)
    for step in range(20):
        for number, name in enumerate(groups):
            if counts[name][step] < LEAST_QUERIES:
                assert found.position[step, number, 1, 2] == -1
                continue
            scaled = 40 * mine[name][step, 1, 2] / counts[name][step]
            expected = scaled.max() - np.delete(scaled, scaled.argmax()).mean()
            assert_close(found.excess[step, number, 1, 2], expected, terms=len(scaled), dtype=torch.float32)
        own = (trace.column_sums - trace.column_sums_prompt)[step, 1, 2] * 40 / computed[step, 10:].sum()
        expected = own.max() - np.delete(own, own.argmax()).mean()
        assert_close(answer.queries[step, 1, 2], expected, terms=len(own), dtype=torch.float32)
