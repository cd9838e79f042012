import itertools
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope.sinks import Sinks, find_sinks, main_sinks, track

KEYS = 17


def follow(planted, steps=20, layers=2, heads=3, keys=KEYS, strength=None):
    """Tracks of a trace in which exactly the planted runs are sinks: {(layer, head): [(position, first, last), …]}."""
    columns = np.full((steps, layers, heads, keys), 0.1, np.float32)
    for (layer, head), runs in planted.items():
        for number, (position, first, last) in enumerate(runs):
            columns[first : last + 1, layer, head, position] = 9 if strength is None else strength[number]
    trace = SimpleNamespace(steps=steps, causal=False, column_sums=columns, tokens=np.zeros((steps, keys), np.int32))
    return track(find_sinks(trace))


def only(planted, **shape):
    tracks = follow({(1, 2): planted}, **shape).tracks
    assert [(one.layer, one.head) for one in tracks] == [(1, 2)] * len(tracks)
    return tracks


def sinks_of(moving, columns):
    """Sinks that stand exactly where ``moving`` says."""
    rows = dict(zip(("step", "layer", "head", "position"), np.argwhere(moving).T, strict=True))
    rows |= dict.fromkeys(("column_sum", "visible_query_mean", "excess"), columns[moving])
    asked = {"threshold": 3.0, "unit": "queries", "shape": moving.shape, "selected_share": 0.0, "source": "column_sums"}
    return Sinks(**rows, **asked, token=rows["position"], columns=columns, moving=moving, ranked=columns)


@pytest.mark.parametrize(
    ("runs", "kinds", "successors"),
    [
        ([(4, 0, 18)], ["static"], [None]),
        ([(4, 1, 19)], ["static"], [None]),
        ([(4, 0, 17)], ["vanished"], [None]),
        ([(4, 2, 19)], ["lasting"], [None]),
        ([(4, 8, 8)], ["one_step"], [None]),
        ([(5, 2, 7), (12, 6, 15)], ["moved", "vanished"], [1, None]),
        ([(5, 2, 7), (2, 8, 15)], ["moved", "vanished"], [1, None]),
        ([(5, 2, 7), (12, 9, 15)], ["vanished", "vanished"], [None, None]),  # starts too late
        ([(5, 2, 7), (12, 5, 15)], ["vanished", "vanished"], [None, None]),  # and too early
        ([(5, 6, 7), (9, 6, 15)], ["vanished", "vanished"], [None, None]),  # began no later
        ([(5, 2, 7), (9, 6, 7)], ["vanished", "vanished"], [None, None]),  # ends no later
        ([(8, 2, 7), (16, 7, 12), (3, 8, 12), (10, 8, 12)], ["moved"] + ["vanished"] * 3, [3, None, None, None]),
        ([(5, 4, 4), (6, 5, 5), (9, 6, 10)], ["one_step", "one_step", "vanished"], [1, 2, None]),
        ([(5, 2, 9), (5, 11, 19)], ["reappeared", "lasting"], [None, None]),  # a position is not its own successor
        ([(3, 1, 4), (6, 5, 8), (3, 12, 14)], ["moved", "vanished", "vanished"], [1, None, None]),
    ],
)
def test_the_kind_of_a_track_and_its_successor(runs, kinds, successors):
    tracks = only(runs)
    assert [(one.position, one.first_step, one.last_step) for one in tracks] == runs
    assert [one.kind for one in tracks] == kinds and [one.successor for one in tracks] == successors
    moved = [(one.distance, tracks[one.successor].position - one.position) for one in tracks if one.distance]
    assert all(distance == expected for distance, expected in moved)


def test_tracks_are_pickled():
    tracks = follow({(1, 2): [(5, 2, 7), (9, 8, 15)]})
    again = pickle.loads(pickle.dumps(tracks))
    assert again.tracks == tracks.tracks and np.array_equal(again.main, tracks.main)
    places = np.array([3, 8]), np.array([1, 1]), np.array([2, 2]), np.array([5, 5])
    assert again.is_sink(*places).tolist() == tracks.is_sink(*places).tolist() == [True, False]
    assert json.loads(json.dumps(tracks.as_dict()))["tracks"] == [vars(one) for one in tracks.tracks]


def test_the_main_sink_is_the_strongest_ties_to_the_lower_position():
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 4, (9, 2, 3, 8)).astype(np.float32)
    selected = columns > 1
    selected[:3, 1] = False
    found = main_sinks(columns, selected)
    for step, layer, head in np.ndindex(9, 2, 3):
        sinks = [j for j in range(8) if selected[step, layer, head, j]]
        expected = max(sinks, key=lambda j, at=(step, layer, head): (columns[(*at, j)], -j), default=-1)
        assert found[step, layer, head] == expected


def test_moves_and_swaps_are_told_by_whether_both_places_stay_sinks():
    rng = np.random.default_rng(3)
    columns = rng.random((40, 2, 3, 9)).astype(np.float32)
    selected = columns > 0.6
    tracks = track(sinks_of(selected, columns))
    for one in tracks.heads:
        sink, main = selected[:, one.layer, one.head], tracks.main[:, one.layer, one.head]
        changes = [
            (s, a, b) for s, (a, b) in enumerate(itertools.pairwise(main.tolist())) if a >= 0 and b >= 0 and a != b
        ]
        swaps = [(s, a, b) for s, a, b in changes if sink[s, a] and sink[s, b] and sink[s + 1, a] and sink[s + 1, b]]
        assert (one.moves, one.swaps) == (len(changes) - len(swaps), len(swaps))
        assert one.moves and one.swaps
