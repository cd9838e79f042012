import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import extras, make_trace, random_columns, sink_at, values_at

from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.answer_queries import AnswerMain
from sinkscope.statistics.groups import LEAST_QUERIES, Groups, GroupSinks, group_sizes
from sinkscope.statistics.intervals import interval_of_means

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


def test_a_planted_split_is_found_with_its_places():
    trace = split_trace(30, 4)
    profile = summarise(trace, [POINT])
    values = values_at(Groups(), profile, POINT)
    assert values["groups.both", ()] == 1
    assert values["groups.split", ()] == 1
    assert values["groups.persistence", ()] == 1
    assert (profile.kept(GroupSinks).position[:, 0] == 30).all()
    assert (profile.kept(GroupSinks).position[:, 1] == 4).all()
    first, last = (values["groups.follows_masked_over_steps", (("third", third),)] for third in ("first", "last"))
    assert first == 1  # most queries are masked at first …
    assert last == 0  # … and the head switches over as they are written
    assert values["groups.split_in", (("layer", 1),)] == 1


def test_without_a_split_there_is_none():
    values = values_at(Groups(), summarise(split_trace(4, 4), [POINT]), POINT)
    assert (values["groups.both", ()], values["groups.split", ()]) == (1, 0)
    assert values["groups.persistence", ()] == 0
    assert np.isnan(values["groups.follows_masked", ()])


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


def test_prompt_queries_are_compared_where_they_were_recorded():
    trace = split_trace(30, 4)
    assert np.isnan(values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.split_from_prompt", ()])
    prompt = np.full(trace.column_sums.shape, 0.1, np.float32)
    prompt[..., 30] = 6
    trace.column_sums_prompt = prompt
    assert values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.split_from_prompt", ()] == 0
    prompt[..., 30], prompt[..., 2] = 0.1, 6
    assert values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.split_from_prompt", ()] == 1


def test_written_queries_are_told_from_the_prompts():
    trace = split_trace(
        30, 4, steps=30
    )  # prompt of 10 on a canvas of 40: 8 are written from step 8 on, 8 masked up to step 22
    unmasked = trace.column_sums - trace.column_sums_masked
    prompt = np.full(trace.column_sums.shape, 0.1, np.float32)
    prompt[..., 4] = 6.1
    trace.column_sums_prompt = prompt
    trace.column_sums = trace.column_sums_masked + prompt + unmasked
    trace.column_sums[..., 17] += 30 - trace.masked.sum(axis=1)[:, None, None]
    profile = summarise(trace, [POINT])
    values, position = values_at(Groups(), profile, POINT), profile.kept(GroupSinks).position
    for step, layer, head in np.ndindex(30, 2, 3):
        written = trace.lengths[step] - trace.masked[step].sum() - 10
        columns = (trace.column_sums - trace.column_sums_masked - prompt)[step, layer, head]
        assert position[step, 3, layer, head] == (columns.argmax() if written >= 8 else -1)
        assert position[step, 2, layer, head] == 4
    assert values["groups.split_from_written", ()] == 1
    assert values["groups.split_prompt_written", ()] == np.mean(position[8:, 3] != 4)


def test_nothing_counts_as_written_where_the_prompt_holds_masks():
    masked = np.zeros((2, 30), bool)
    masked[0, 20:], masked[1, 3:] = True, True
    assert [group_sizes(one, 10) for one in masked] == [(10, 20, 10, 10), (27, 3, 10, 0)]


@pytest.mark.slow
def test_chance_splits_do_not_persist():
    persistence = []
    for seed in range(200):
        prompts = []
        for one in range(6):
            share = np.random.default_rng([seed, one]).dirichlet(np.full(25, 0.1), (2, 6, 1, 2))
            trace = make_trace(np.ones((6, 1, 2, 25)), prompt_length=12)
            masked = trace.masked.sum(axis=1)[:, None, None, None]
            trace.column_sums_masked = share[0] * masked
            trace.column_sums = share[0] * masked + share[1] * (25 - masked)
            prompts.append(values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.persistence", ()])
        persistence.append(prompts)
    found = interval_of_means(np.array(persistence).T, resamples=500)
    assert np.nanmean(found.mean) == pytest.approx(0, abs=0.01)
    outside = ((found.low > 0) | (found.high < 0)).mean()
    assert outside <= 0.05 + 0.08  # six prompts: coverage is some 92 %


def absorbing(diagonal):
    """A sink whose share swings from 0.2 to 0.8; ``diagonal``: (share of the sink) → self-attention of the others."""
    share = 0.5 + 0.3 * np.sin(np.arange(24))
    columns = np.stack([sink_at([5], strength=30 * one, layers=2, heads=3)[0] for one in share])
    trace = make_trace(columns, **extras(columns))
    trace.self_attention = np.broadcast_to(diagonal(share)[:, None, None, None], columns.shape).copy()
    trace.self_attention[..., 5] = 0.5
    return trace


def test_a_sink_that_takes_from_all_alike_absorbs_no_self_attention_and_one_that_takes_it_first_does():
    alike = values_at(Groups(), summarise(absorbing(lambda share: 0.1 * (1 - share)), [POINT]), POINT)
    assert alike["groups.self_attention_absorbed", ()] == pytest.approx(0, abs=1e-3)
    first = values_at(Groups(), summarise(absorbing(lambda share: 0.1 * (1 - share) ** 2), [POINT]), POINT)
    assert first["groups.self_attention_absorbed", ()] == pytest.approx(-0.1, abs=0.005)
    assert 0 < first["groups.self_share", ()] < 0.1


def test_a_sink_whose_share_does_not_change_has_no_slope_against_it():
    trace = absorbing(lambda share: 0.1 * (1 - share))
    trace.column_sums = sink_at(np.full(24, 5), strength=12, noise=0.5).astype(np.float32)  # what varies is rounding
    assert np.isnan(values_at(Groups(), summarise(trace, [POINT]), POINT)["groups.self_attention_absorbed", ()])


def test_a_trace_without_groups_or_self_attention_has_none_of_it():
    values = values_at(Groups(), summarise(make_trace(random_columns(0)), [POINT]), POINT)
    assert np.isnan(values["groups.both", ()])
    assert np.isnan(
        [values["groups.split", ()], values["groups.self_share", ()], values["groups.self_attention_absorbed", ()]]
    ).all()


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
