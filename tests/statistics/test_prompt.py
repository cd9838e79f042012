from types import SimpleNamespace

import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import dense_uniform, extras, make_trace, random_columns

from sinkscope.errors import CallError
from sinkscope.sinks import find_sinks, is_sink, last_query_window, main_sinks, track
from sinkscope.sinks.tracking import KINDS
from sinkscope.statistics import PromptSettings, Threshold, feed_of, summarise
from sinkscope.statistics.groups import GroupSinks
from sinkscope.statistics.movement import HEAD_KINDS, track_kinds
from sinkscope.statistics.norms import StepNorms
from sinkscope.statistics.statistic import recorded_steps, values_of


def grown(columns, lengths):
    """NaN beyond the lengths, as a canvas that grows leaves them; each row adds up to its length."""
    columns = columns.copy()
    for step, length in enumerate(lengths):
        columns[step, ..., length:] = np.nan
        columns[step] *= length / np.nansum(columns[step], axis=-1, keepdims=True)
    return columns


def grown_trace(seed, lengths, causal=False, **more):
    columns = grown(random_columns(seed, **more), lengths)
    trace = make_trace(columns)
    trace.lengths, trace.causal = np.array(lengths), causal
    for step, length in enumerate(lengths):
        trace.tokens[step, length:] = -1
    if causal:
        trace.last_query = (columns / np.nansum(columns, axis=-1, keepdims=True)).astype(np.float32)
    return trace


RAGGED = (30, 28, 30, 30, 25, 30, 29, 30, 30, 30, 30, 30)


@pytest.mark.parametrize("tolerance", [0, 2])
@pytest.mark.parametrize("threshold", [Threshold(1.0), Threshold(3.0), Threshold(5.0, "percent")])
def test_main_sinks_and_tracks_are_those_of_the_whole_trace(threshold, tolerance):
    trace = grown_trace(1, RAGGED, sharpness=0.3)
    found = summarise(trace, [Threshold(8.0), threshold], tolerance)
    sinks = find_sinks(trace, threshold.excess, threshold.unit)
    tracks = track(sinks, tolerance)
    np.testing.assert_array_equal(found.main_at(threshold), tracks.main)
    kinds = track_kinds(found)
    assert dict(zip(HEAD_KINDS, kinds["tracks"][1].sum(axis=0).tolist(), strict=True)) == {**tracks.kinds, "none": 0}
    durations = [one.last_step - one.first_step + 1 for one in tracks.tracks]
    assert kinds["lived"][1].sum() == sum(durations)
    longest = dict.fromkeys(np.ndindex(2, 3), (0, "none"))
    for one in tracks.tracks:
        longest[one.layer, one.head] = max(
            longest[one.layer, one.head], (one.last_step - one.first_step + 1, one.kind), key=lambda pair: pair[0]
        )
    by_kind = dict(zip(HEAD_KINDS, kinds["heads"][1].sum(axis=0).tolist(), strict=True))
    assert by_kind == {kind: sum(name == kind for _, name in longest.values()) for kind in HEAD_KINDS}
    assert set(KINDS) == set(HEAD_KINDS) - {"none"}


@pytest.mark.parametrize("causal", [False, True])
def test_every_array_of_a_summary_is_that_of_the_whole_trace(causal):
    trace, threshold = grown_trace(2, range(19, 31) if causal else RAGGED, causal), Threshold(3.0)
    found, columns = summarise(trace, [Threshold(2.0, "percent"), threshold]), trace.column_sums
    followed, selected, moving, ranked = columns, *[is_sink(columns, 3.0)] * 2, columns
    if causal:
        followed, (selected, moving, _, ranked) = last_query_window(trace.last_query), dense_uniform(trace, 3.0)
        assert found.uncounted == 5 and moving.any() and (moving[5:] != is_sink(followed[5:])).any()
    assert (found.steps, found.layers, found.heads, found.columns) == (12, 2, 3, (~np.isnan(columns)).sum())
    np.testing.assert_array_equal(found.counts(threshold), selected.sum(axis=-1))
    np.testing.assert_array_equal(found.has_sink(threshold), selected.any(axis=-1))
    shares = np.nansum(columns * selected, axis=-1) / np.nansum(columns, axis=-1)
    assert_close(found.shares(threshold), shares, terms=columns.shape[-1], dtype=torch.float32)
    if not causal:
        np.testing.assert_array_equal(found.by_step.top, np.nanargmax(columns, axis=-1))
        strongest = (np.nan_to_num(columns) * selected).max(axis=-1)
        np.testing.assert_array_equal(np.where(found.has_sink(threshold), found.by_step.largest, 0), strongest)
    at_top = np.take_along_axis(columns, found.by_step.top[..., None], -1)[..., 0]
    np.testing.assert_array_equal(found.by_step.largest, at_top)
    main = main_sinks(np.nan_to_num(ranked, nan=-9.0).astype(np.float32), moving)
    np.testing.assert_array_equal(found.main_at(threshold), main)
    at_main = np.take_along_axis(followed, np.maximum(main, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(found.by_step.main_column[main >= 0], at_main[main >= 0], rtol=1e-6)
    assert_close(found.mean_columns, followed.mean(axis=(1, 2)), terms=columns.shape[-1], dtype=torch.float32)
    np.testing.assert_array_equal(found.tally[1], selected.sum(axis=(1, 2)))
    for layer in range(2):
        bins = np.histogram(
            columns[:, layer][~np.isnan(columns[:, layer])], np.arange(found.quarters.shape[1] + 1) / 4
        )[0]
        np.testing.assert_array_equal(found.quarters[layer], bins)
        step, head, key = np.nonzero(moving[:, layer])
        sinks = found.followed.of_layer(layer).at(threshold)
        order = np.lexsort((step, key, head))
        np.testing.assert_array_equal(
            np.stack([sinks.step, sinks.head, sinks.key]), np.stack([step, head, key])[:, order]
        )
        np.testing.assert_allclose(sinks.column, followed[:, layer][step, head, key][order], rtol=1e-6)
        asked = np.array([0, 5, 11]), np.array([1, 0, 2]), np.array([3, 7, 11])
        np.testing.assert_array_equal(sinks.contains(*asked), moving[:, layer][asked])
    tokens = find_sinks(trace).token
    assert found.sinks_by_token(threshold).tolist() == [(tokens == token).sum() for token in found.canvas.token_ids]


class Pieces:
    """A tensor that is handed out a few steps at a time, each once."""

    def __init__(self, array):
        self.array, self.shape, self.asked = array, array.shape, []

    def __getitem__(self, index):
        self.asked.append((index.start, index.stop))
        return self.array[index]


def test_a_trace_is_read_a_few_steps_at_a_time_and_once(monkeypatch):
    columns = random_columns(3, layers=3)
    plain = make_trace(columns, **extras(columns))
    names = ["column_sums", *extras(columns)]
    pieces = SimpleNamespace(**{**vars(plain), **{name: Pieces(getattr(plain, name)) for name in names}})
    monkeypatch.setattr(
        "sinkscope.statistics.statistic.READ_AT_ONCE", 4 * 5 * sum(getattr(plain, name)[0].size for name in names)
    )
    found, expected = summarise(pieces), summarise(plain)
    for name in names:
        assert getattr(pieces, name).asked == [(0, 5), (5, 10), (10, 15)]
    np.testing.assert_array_equal(found.by_step.shares, expected.by_step.shares)
    np.testing.assert_array_equal(found.kept(StepNorms).of_sinks, expected.kept(StepNorms).of_sinks)


@pytest.mark.parametrize("causal", [False, True])
def test_a_loop_may_fill_the_same_arrays_in_every_step(causal):
    columns = random_columns(4)
    more = {"last_query": (columns / columns.sum(axis=-1, keepdims=True)).astype(np.float32)} if causal else {}
    trace = make_trace(columns, **extras(columns), **more)
    trace.causal = causal
    feed, buffers = feed_of(PromptSettings.of(causal, trace.manifest)), {}
    for step in recorded_steps(trace):
        for name, array in step.items():
            buffers.setdefault(name, array.copy())[...] = array
        feed.feed(buffers)
    vocabulary = {int(token): text for token, text in trace.manifest["vocabulary"].items()}
    found, expected = values_of(feed.finish(vocabulary)), values_of(summarise(trace))
    assert found == pytest.approx(expected, abs=0, rel=0, nan_ok=True)


def test_columns_that_cannot_be_are_refused_before_they_are_counted():
    step = {"tokens": np.arange(5), "column_sums": np.ones((2, 3, 5)), "last_query": np.ones((2, 3, 5))}
    feed = feed_of(PromptSettings(causal=True))
    feed.feed(step)
    for value in (np.nan, np.inf):
        wrong = np.ones((2, 3, 5))
        wrong[1, 2, 3] = value
        with pytest.raises(CallError, match="column_sums: expected finite numbers"):
            feed.feed(step | {"column_sums": wrong})
    with pytest.raises(CallError, match="a canvas that grows, found 3 tokens behind a step of 5; record each text by"):
        feed.feed({name: array[..., :3] for name, array in step.items()})
    assert feed.steps == feed.finish().steps == 1


def test_a_split_is_as_clear_as_the_weaker_of_its_two_keys():
    """Masked queries give 0.6 to key 30 and 0.1 to key 4, the others 0.2 and 0.5."""
    trace = make_trace(np.ones((20, 2, 3, 40)), prompt_length=10)
    masks = trace.masked.sum(axis=1)[:, None, None]
    trace.column_sums_masked, others = np.zeros((2, 20, 2, 3, 40), np.float32)
    trace.column_sums_masked[..., 30], trace.column_sums_masked[..., 4] = 0.6 * masks, 0.1 * masks
    others[..., 30], others[..., 4] = 0.2 * (40 - masks), 0.5 * (40 - masks)
    trace.column_sums = trace.column_sums_masked + others
    assert_close(summarise(trace).kept(GroupSinks).clarity, 0.4, terms=40, dtype=torch.float32)
    trace.column_sums = 2 * trace.column_sums_masked
    assert np.isnan(summarise(trace).kept(GroupSinks).clarity).all()


def test_layers_are_looked_at_together_without_a_difference():
    trace, threshold = grown_trace(5, RAGGED, layers=4, sharpness=0.3), Threshold(2.0)
    followed = summarise(trace, [threshold]).followed
    counts = [len(followed.of_layer(layer).at(threshold).step) for layer in range(4)]
    assert list(followed.groups_of_layers()) == [(0, 4)]
    assert list(followed.groups_of_layers(1)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert list(followed.groups_of_layers(sum(counts[:3]))) == [(0, 3), (3, 4)]
    together = followed.of_layers(1, 4).at(threshold)
    alone = [followed.of_layer(layer).at(threshold) for layer in (1, 2, 3)]
    assert together.key.tolist() == [one for each in alone for one in each.key.tolist()]
    assert together.head.tolist() == [3 * layer + one for layer, each in enumerate(alone) for one in each.head.tolist()]
