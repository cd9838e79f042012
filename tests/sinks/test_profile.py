from types import SimpleNamespace

import numpy as np
import pytest
from planted import extras, make_trace, random_columns, sink_at

from sinkscope.errors import CallError, SinkscopeError
from sinkscope.sinks import Point, find_sinks, is_sink, last_query_window, main_sinks, profile_of, track
from sinkscope.sinks.candidates import find_candidates
from sinkscope.sinks.definition import excess_of
from sinkscope.sinks.movement import HEAD_KINDS, fill_dips
from sinkscope.sinks.points import POINTS, check_point, sweep
from sinkscope.sinks.tracking import KINDS


def grown(columns, lengths):
    """NaN beyond the lengths, as a canvas that grows leaves them; each row adds up to its length."""
    columns = columns.copy()
    for step, length in enumerate(lengths):
        columns[step, ..., length:] = np.nan
        columns[step] *= length / np.nansum(columns[step], axis=-1, keepdims=True)
    return columns


@pytest.mark.parametrize("point", POINTS)
def test_candidates_are_the_sinks_of_eq_3_at_every_point(point):
    columns = grown(random_columns(0, steps=5, layers=1, heads=4, width=70), (70, 61, 70, 50, 64))[:, 0].astype(np.float32)
    found = find_candidates(columns, excess_of(columns), np.nansum(columns, axis=-1), POINTS)
    chosen = found.at(point)
    expected = np.argwhere(is_sink(columns, point.excess, point.unit))
    assert len(expected) > 10
    np.testing.assert_array_equal(np.stack([found.step, found.head, found.key], axis=1)[chosen], expected)
    np.testing.assert_array_equal(found.column[chosen], columns[tuple(expected.T)])


@pytest.mark.parametrize("point", [Point(1.0), Point(3.0), Point(5.0, "percent")])
def test_main_sinks_and_tracks_are_those_of_the_whole_trace(point):
    lengths = (30, 28, 30, 30, 25, 30, 29, 30, 30, 30, 30, 30)
    trace = make_trace(grown(random_columns(1, sharpness=0.3), lengths))
    for step, length in enumerate(lengths):
        trace.tokens[step, length:] = -1
    trace.lengths = np.array(lengths)
    found = profile_of(trace, [Point(8.0), point])
    sinks = find_sinks(trace, point.excess, point.unit)
    np.testing.assert_array_equal(found.main_at(point), main_sinks(sinks.columns, sinks.moving))
    kinds = found.kinds.tracks[1].sum(axis=0)
    assert dict(zip(HEAD_KINDS, kinds.tolist(), strict=True)) == {**track(sinks).kinds, "none": 0}
    durations = [one.last_step - one.first_step + 1 for one in track(sinks).tracks]
    assert found.kinds.steps[1].sum() == sum(durations)
    longest = dict.fromkeys(np.ndindex(2, 3), (0, "none"))
    for one in track(sinks).tracks:
        longest[one.layer, one.head] = max(
            longest[one.layer, one.head], (one.last_step - one.first_step + 1, one.kind), key=lambda pair: pair[0]
        )
    by_kind = dict(zip(HEAD_KINDS, found.kinds.heads[1].sum(axis=0).tolist(), strict=True))
    assert by_kind == {kind: sum(name == kind for _, name in longest.values()) for kind in HEAD_KINDS}
    assert set(KINDS) == set(HEAD_KINDS) - {"none"}


def test_movement_of_a_causal_trace_is_read_from_its_last_queries():
    columns = grown(random_columns(2), range(19, 31))
    trace = make_trace(columns)
    trace.causal = True
    trace.last_query = columns / np.nansum(columns, axis=-1, keepdims=True)
    for step, length in enumerate(range(19, 31)):
        trace.tokens[step, length:] = -1
    found = profile_of(trace, [Point(1.0)])
    window = last_query_window(trace.last_query, 16)
    np.testing.assert_array_equal(found.main_at(Point(1.0)), main_sinks(window, is_sink(window, 1.0)))
    assert found.concentration.counts[0].sum() == is_sink(trace.column_sums, 1.0).sum()


class Pieces:
    """A tensor that is only handed out a layer at a time."""

    def __init__(self, array):
        self.array, self.shape, self.asked = array, array.shape, []

    def __getitem__(self, index):
        assert isinstance(index, tuple)
        assert index[0] == slice(None)
        self.asked.append(index[1])
        return self.array[index]


def test_a_trace_is_read_a_layer_at_a_time_and_once():
    columns = random_columns(3, layers=3)
    plain = make_trace(columns, **extras(columns))
    names = ["column_sums", *extras(columns)]
    pieces = SimpleNamespace(**{**vars(plain), **{name: Pieces(getattr(plain, name)) for name in names}})
    found, expected = profile_of(pieces), profile_of(plain)
    for name in names:
        assert getattr(pieces, name).asked == [0, 1, 2]
    np.testing.assert_array_equal(found.concentration.shares, expected.concentration.shares)
    np.testing.assert_array_equal(found.norms.of_sinks, expected.norms.of_sinks)


def test_dips_of_the_main_sink_are_filled_up_to_the_tolerance():
    main = np.array([4, -1, 4, -1, -1, 4, -1, 5, 5])[:, None, None]
    assert fill_dips(main, 0)[:, 0, 0].tolist() == [4, -1, 4, -1, -1, 4, -1, 5, 5]
    assert fill_dips(main, 1)[:, 0, 0].tolist() == [4, 4, 4, -1, -1, 4, -1, 5, 5]
    assert fill_dips(main, 2)[:, 0, 0].tolist() == [4, 4, 4, 4, 4, 4, -1, 5, 5]
    trace = make_trace(sink_at([3, 3, -1, 3, 3, -1, -1, 3, 3, 3], layers=1, heads=2))
    assert (profile_of(trace, [Point(3.0)], tolerance=1).main_at(Point(3.0)) == -1).sum() == 2 * 2
    assert profile_of(trace, [Point(3.0)], tolerance=2).kinds.tracks[0].sum() == 2
    assert profile_of(trace, [Point(3.0)], tolerance=0).kinds.tracks[0].sum() == 2 * 3


def test_what_cannot_be_profiled_is_refused():
    trace = make_trace(random_columns(4))
    with pytest.raises(CallError, match="points: expected at least one Point"):
        profile_of(trace, [])
    with pytest.raises(CallError, match="tolerance: expected a number of steps from 0 upwards, found -2"):
        profile_of(trace, tolerance=-2)
    with pytest.raises(CallError, match="unit: expected queries or percent, found 'mean'"):
        profile_of(trace, [Point(0.5, "mean")])
    trace.steps = 0
    with pytest.raises(SinkscopeError, match="no whole step yet; there is nothing to analyse"):
        profile_of(trace)


def test_a_sweep_tells_a_statistic_at_every_point():
    found = sweep(POINTS, lambda point: {("name", (("layer", 2),)): point.excess})
    assert len(found) == len(POINTS) == 10
    assert found["name", (("excess", 5.0), ("unit", "percent"), ("layer", 2))] == 5.0
    with pytest.raises(CallError, match="excess: expected a finite number"):
        check_point(Point(-1.0))
