from types import SimpleNamespace

import numpy as np
import pytest
import torch
from closeness import assert_close
from planted import extras, make_trace, random_columns, sink_at

from sinkscope.errors import CallError, SinkscopeError
from sinkscope.sinks import excess_of, find_sinks, in_unit, is_sink, last_query_window, main_sinks, track
from sinkscope.sinks.tracking import KINDS, fill_dips
from sinkscope.statistics import THRESHOLDS, Threshold, summarise
from sinkscope.statistics.groups import GroupSinks
from sinkscope.statistics.movement import HEAD_KINDS, track_kinds
from sinkscope.statistics.norms import StepNorms
from sinkscope.statistics.statistic import at_thresholds
from sinkscope.statistics.step import find_candidates


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


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_candidates_are_the_sinks_of_eq_3_at_every_threshold(threshold):
    columns = random_columns(0, steps=5, layers=3, heads=4, width=70)[2].astype(np.float32)
    found = find_candidates(columns, excess_of(columns), excess_of(in_unit(columns, "percent")), THRESHOLDS)
    chosen = found.at(threshold)
    expected = np.argwhere(is_sink(columns, threshold.excess, threshold.unit))
    assert len(expected) > 2
    np.testing.assert_array_equal(np.stack([found.layer, found.head, found.key], axis=1)[chosen], expected)
    np.testing.assert_array_equal(found.column[chosen], columns[tuple(expected.T)])
    by_key = found.tally(found.key, 70, found.column)[THRESHOLDS.index(threshold)]
    assert by_key == pytest.approx(np.bincount(expected[:, 2], columns[tuple(expected.T)], 70))


@pytest.mark.parametrize("tolerance", [0, 2])
@pytest.mark.parametrize("threshold", [Threshold(1.0), Threshold(3.0), Threshold(5.0, "percent")])
def test_main_sinks_and_tracks_are_those_of_the_whole_trace(threshold, tolerance):
    trace = grown_trace(1, RAGGED, sharpness=0.3)
    found = summarise(trace, [Threshold(8.0), threshold], tolerance)
    sinks = find_sinks(trace, threshold.excess, threshold.unit)
    tracks = track(sinks, tolerance)
    np.testing.assert_array_equal(found.main_at(threshold), tracks.main)
    kinds = track_kinds(found)
    assert dict(zip(HEAD_KINDS, kinds.tracks[1].sum(axis=0).tolist(), strict=True)) == {**tracks.kinds, "none": 0}
    durations = [one.last_step - one.first_step + 1 for one in tracks.tracks]
    assert kinds.lived[1].sum() == sum(durations)
    longest = dict.fromkeys(np.ndindex(2, 3), (0, "none"))
    for one in tracks.tracks:
        longest[one.layer, one.head] = max(
            longest[one.layer, one.head], (one.last_step - one.first_step + 1, one.kind), key=lambda pair: pair[0]
        )
    by_kind = dict(zip(HEAD_KINDS, kinds.heads[1].sum(axis=0).tolist(), strict=True))
    assert by_kind == {kind: sum(name == kind for _, name in longest.values()) for kind in HEAD_KINDS}
    assert set(KINDS) == set(HEAD_KINDS) - {"none"}


@pytest.mark.parametrize("causal", [False, True])
def test_every_array_of_a_summary_is_that_of_the_whole_trace(causal):
    trace, threshold = grown_trace(2, range(19, 31) if causal else RAGGED, causal), Threshold(3.0)
    found, columns = summarise(trace, [Threshold(2.0, "percent"), threshold]), trace.column_sums
    followed, selected = last_query_window(trace.last_query) if causal else columns, is_sink(columns, 3.0)
    assert (found.steps, found.layers, found.heads, found.columns) == (12, 2, 3, (~np.isnan(columns)).sum())
    np.testing.assert_array_equal(found.counts(threshold), selected.sum(axis=-1))
    np.testing.assert_array_equal(found.has_sink(threshold), selected.any(axis=-1))
    shares = np.nansum(columns * selected, axis=-1) / np.nansum(columns, axis=-1)
    assert_close(found.shares(threshold), shares, terms=columns.shape[-1], dtype=torch.float32)
    np.testing.assert_array_equal(found.by_step.largest, np.nanmax(columns, axis=-1))
    np.testing.assert_array_equal(found.by_step.top, np.nanargmax(columns, axis=-1))
    np.testing.assert_array_equal(
        np.nan_to_num(found.strength(threshold)), (np.nan_to_num(columns) * selected).max(axis=-1)
    )
    np.testing.assert_array_equal(found.main_at(threshold), main_sinks(followed, is_sink(followed, 3.0)))
    np.testing.assert_allclose(found.by_step.main_column, np.nanmax(followed, axis=-1), rtol=1e-6)
    assert_close(found.mean_columns, followed.mean(axis=(1, 2)), terms=columns.shape[-1], dtype=torch.float32)
    np.testing.assert_array_equal(found.tally[1], selected.sum(axis=(1, 2)))
    for layer in range(2):
        bins = np.histogram(
            columns[:, layer][~np.isnan(columns[:, layer])], np.arange(found.quarters.shape[1] + 1) / 4
        )[0]
        np.testing.assert_array_equal(found.quarters[layer], bins)
        step, head, key = np.nonzero(is_sink(followed, 3.0)[:, layer])
        sinks = found.followed.of_layer(layer).at(threshold)
        order = np.lexsort((step, key, head))
        np.testing.assert_array_equal(
            np.stack([sinks.step, sinks.head, sinks.key]), np.stack([step, head, key])[:, order]
        )
        np.testing.assert_allclose(sinks.column, followed[:, layer][step, head, key][order], rtol=1e-6)
        asked = np.array([0, 5, 11]), np.array([1, 0, 2]), np.array([3, 7, 11])
        np.testing.assert_array_equal(sinks.contains(*asked), is_sink(followed, 3.0)[:, layer][asked])
    assert found.heads_with_sink(threshold) == selected.any(axis=(0, 3)).sum()
    assert found.heads_with_main_sink(threshold) == is_sink(followed, 3.0).any(axis=(0, 3)).sum()
    tokens = find_sinks(trace).token
    assert found.sinks_by_token(threshold).tolist() == [(tokens == token).sum() for token in found.canvas.token_ids]


def test_heads_with_a_sink_and_heads_with_a_main_sink_are_told_apart():
    """Running sums keep a sink that the newest 16 queries no longer attend to."""
    columns = sink_at(np.full(20, 3), layers=1, heads=2)
    trace = make_trace(columns)
    trace.causal, trace.last_query = True, np.full(columns.shape, 1 / 30, np.float32)
    trace.last_query[:, :, 1, 5] = 0.9
    found = summarise(trace, [Threshold(3.0)])
    assert (found.heads_with_sink(Threshold(3.0)), found.heads_with_main_sink(Threshold(3.0))) == (2, 1)


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


def test_dips_of_the_main_sink_are_filled_up_to_the_tolerance():
    main = np.array([4, -1, 4, -1, -1, 4, -1, 5, 5])[:, None, None]
    assert fill_dips(main, 0)[:, 0, 0].tolist() == [4, -1, 4, -1, -1, 4, -1, 5, 5]
    assert fill_dips(main, 1)[:, 0, 0].tolist() == [4, 4, 4, -1, -1, 4, -1, 5, 5]
    assert fill_dips(main, 2)[:, 0, 0].tolist() == [4, 4, 4, 4, 4, 4, -1, 5, 5]
    trace, threshold = make_trace(sink_at([3, 3, -1, 3, 3, -1, -1, 3, 3, 3], layers=1, heads=2)), Threshold(3.0)
    assert (summarise(trace, [threshold], tolerance=1).main_at(threshold) == -1).sum() == 2 * 2
    assert track_kinds(summarise(trace, [threshold], tolerance=2)).tracks.sum() == 2
    assert track_kinds(summarise(trace, [threshold], tolerance=0)).tracks.sum() == 2 * 3


def test_what_cannot_be_summarised_is_refused():
    trace = make_trace(random_columns(4))
    with pytest.raises(CallError, match="tolerance: expected a number of steps from 0 upwards, found -2"):
        summarise(trace, tolerance=-2)
    with pytest.raises(CallError, match="a mean is percent / 100"):
        summarise(trace, [Threshold(0.5, "mean")])
    found = summarise(trace, [Threshold(2.0)])
    with pytest.raises(ValueError, match="not in tuple"):
        found.counts(Threshold(3.0))
    trace.steps = 0
    with pytest.raises(SinkscopeError, match="no whole step yet; there is nothing to analyse"):
        summarise(trace)


def test_a_sweep_tells_a_statistic_at_every_threshold():
    prompt = SimpleNamespace(thresholds=THRESHOLDS)
    found = at_thresholds(prompt, lambda _, threshold: {("name", (("layer", 2),)): threshold.excess})
    assert len(found) == len(THRESHOLDS) == 10
    assert found["name", (("excess", 5.0), ("unit", "percent"), ("layer", 2))] == 5.0
    with pytest.raises(CallError, match="expected an excess from 0 upwards"):
        Threshold(-1.0)


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
    together, alone = (
        followed.of_layers(1, 4).episodes(threshold),
        [followed.of_layer(layer).episodes(threshold) for layer in (1, 2, 3)],
    )
    assert together.kind.tolist() == [kind for one in alone for kind in one.kind.tolist()]
    assert together.head.tolist() == [
        3 * number + head for number, one in enumerate(alone) for head in one.head.tolist()
    ]
    assert together.first.tolist() == [first for one in alone for first in one.first.tolist()]
