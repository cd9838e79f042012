import itertools
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope.sinks import Sinks, find_sinks, main_sinks, track
from sinkscope.sinks.tracking import KIND_MEANINGS

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
    return Sinks(**rows, **asked, token=rows["position"], columns=columns, moving=moving)


def runs_of(tracks):
    return [(one.position, one.first_step, one.last_step) for one in tracks]


# Kinds


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [(0, 19, "static"), (0, 18, "static"), (1, 19, "static"), (0, 17, "vanished"), (2, 19, "lasting")],
)
def test_static_is_95_percent_of_the_steps(first, last, kind):
    (one,) = only([(4, first, last)], steps=20)
    assert one.kind == kind
    assert (one.position, one.first_step, one.last_step) == (4, first, last)
    assert (one.successor, one.distance) == (None, None)


@pytest.mark.parametrize("step", [0, 8, 19])
def test_a_sink_of_one_step(step):
    (one,) = only([(4, step, step)])
    assert one.kind == "one_step"
    assert one.successor is None


@pytest.mark.parametrize("start", [6, 7, 8])
@pytest.mark.parametrize(("position", "distance"), [(12, 7), (2, -3)])
def test_a_sink_moves_to_a_track_that_starts_within_one_step_of_its_end(start, position, distance):
    tracks = only([(5, 2, 7), (position, start, 15)])
    assert runs_of(tracks) == [(5, 2, 7), (position, start, 15)]
    assert [one.kind for one in tracks] == ["moved", "vanished"]
    assert (tracks[0].successor, tracks[0].distance) == (1, distance)


@pytest.mark.parametrize("start", [5, 9])
def test_a_track_that_starts_further_away_is_no_successor(start):
    tracks = {one.position: one for one in only([(5, 2, 7), (12, start, 15)])}
    assert tracks[5].kind == "vanished"
    assert (tracks[5].successor, tracks[5].distance) == (None, None)


def test_a_track_of_another_head_is_no_successor():
    tracks = follow({(0, 1): [(5, 2, 7)], (0, 2): [(6, 8, 15)], (1, 1): [(6, 8, 15)]}).tracks
    assert {one.kind for one in tracks} == {"vanished"}


def test_a_track_that_began_before_or_ends_no_later_is_no_successor():
    began_before = {one.position: one for one in only([(5, 6, 7), (9, 6, 15)])}
    assert began_before[5].kind == "vanished"
    within = {one.position: one for one in only([(5, 2, 7), (9, 6, 7)])}
    assert within[5].kind == "vanished"
    glossary = " ".join((Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8").split())
    assert "began later and ends later" in KIND_MEANINGS["moved"] and "began later than it and ends later" in glossary


def test_the_nearest_of_several_successors_is_taken():
    tracks = only([(8, 2, 7), (3, 8, 12), (10, 8, 12), (16, 7, 12)])
    moved = tracks[0]
    assert moved.kind == "moved"
    assert (tracks[moved.successor].position, moved.distance) == (10, 2)


def test_a_sink_of_one_step_that_moves_on_keeps_its_successor():
    tracks = only([(5, 4, 4), (6, 5, 5), (9, 6, 10)])
    assert [one.kind for one in tracks] == ["one_step", "one_step", "vanished"]
    assert [one.successor for one in tracks] == [1, 2, None]
    assert [one.distance for one in tracks] == [1, 3, None]


def test_successors_are_numbers_of_tracks_of_the_whole_trace():
    tracks = follow({(0, 0): [(1, 0, 3), (2, 4, 9)], (1, 1): [(5, 2, 7), (12, 8, 15)]}).tracks
    assert [(one.layer, one.head, one.position) for one in tracks] == [(0, 0, 1), (0, 0, 2), (1, 1, 5), (1, 1, 12)]
    assert [one.successor for one in tracks] == [1, None, 3, None]


def test_tracks_are_pickled():
    tracks = follow({(1, 2): [(5, 2, 7), (9, 8, 15)]})
    again = pickle.loads(pickle.dumps(tracks))
    assert again.tracks == tracks.tracks and np.array_equal(again.main, tracks.main)
    places = np.array([3, 8]), np.array([1, 1]), np.array([2, 2]), np.array([5, 5])
    assert again.is_sink(*places).tolist() == tracks.is_sink(*places).tolist() == [True, False]


def test_without_keys_no_head_has_a_main_sink():
    assert main_sinks(np.ones((2, 1, 3, 0), np.float32), np.ones((2, 1, 3, 0), bool)).tolist() == [[[-1] * 3]] * 2


def test_a_dip_makes_two_tracks_of_one_position():
    tracks = only([(5, 2, 9), (5, 11, 19)])
    assert runs_of(tracks) == [(5, 2, 9), (5, 11, 19)]
    assert [one.kind for one in tracks] == ["reappeared", "lasting"]
    assert [one.distance for one in tracks] == [None, None]  # a position is not its own successor


def test_a_sink_that_ends_vanishes_or_reappears_or_lasts():
    tracks = {runs: one.kind for one in only([(3, 1, 4), (3, 8, 10), (14, 12, 19)]) for runs in runs_of([one])}
    assert tracks == {(3, 1, 4): "reappeared", (3, 8, 10): "vanished", (14, 12, 19): "lasting"}


def test_moving_goes_before_reappearing():
    tracks = only([(3, 1, 4), (6, 5, 8), (3, 12, 14)])
    assert [one.kind for one in tracks] == ["moved", "vanished", "vanished"]


def test_several_sinks_of_one_head_are_followed_side_by_side():
    tracks = only([(0, 0, 19), (7, 2, 9), (8, 10, 14), (13, 5, 5)])
    assert {(one.position, one.kind) for one in tracks} == {
        (0, "static"),
        (7, "moved"),
        (8, "vanished"),
        (13, "one_step"),
    }
    assert [one.first_step for one in tracks] == sorted(one.first_step for one in tracks)


def test_kinds_are_counted_all_of_them():
    tracks = follow({(0, 0): [(0, 0, 19), (7, 2, 9), (8, 10, 14)], (1, 1): [(3, 1, 4), (3, 8, 10)]})
    assert tracks.kinds == {"static": 1, "moved": 1, "vanished": 2, "reappeared": 1, "one_step": 0, "lasting": 0}


def test_one_step_alone_is_static():
    tracks = follow({(0, 2): [(4, 0, 0)]}, steps=1)
    assert [one.kind for one in tracks.tracks] == ["static"]
    assert tracks.heads[2].drift_per_step is None
    assert tracks.main[0, 0].tolist() == [-1, -1, 4]


def test_without_sinks_there_is_no_track():
    tracks = follow({}, steps=5)
    assert tracks.tracks == ()
    assert (tracks.main == -1).all()
    assert [(head.moves, head.drift_per_step, head.steps_with_sink) for head in tracks.heads] == [(0, None, 0)] * 6


def test_tracks_of_no_step_are_none():
    nothing = np.zeros((0, 2, 3, KEYS), np.float32)
    tracks = track(sinks_of(nothing > 0, nothing))
    assert tracks.tracks == ()
    assert [head.drift_per_step for head in tracks.heads] == [None] * 6


@pytest.mark.parametrize("seed", range(4))
def test_tracks_are_maximal_and_cover_every_sink_once(seed):
    rng = np.random.default_rng(seed)
    planted = rng.random((13, 2, 3, 7)) < 0.4
    columns = np.where(planted, np.float32(50), np.float32(0.01)) + rng.random(planted.shape).astype(np.float32)
    covered = np.zeros(planted.shape, int)
    tracks = track(sinks_of(planted, columns)).tracks
    for one in tracks:
        covered[one.first_step : one.last_step + 1, one.layer, one.head, one.position] += 1
        assert one.first_step == 0 or not planted[one.first_step - 1, one.layer, one.head, one.position]
        assert one.last_step == 12 or not planted[one.last_step + 1, one.layer, one.head, one.position]
        if one.successor is not None:
            following = tracks[one.successor]
            assert (following.layer, following.head) == (one.layer, one.head)
            assert abs(following.first_step - one.last_step) <= 1
            assert one.distance == following.position - one.position != 0
    np.testing.assert_array_equal(covered, planted)


def test_tracks_as_plain_values_have_the_names_of_the_command():
    tracks = follow({(0, 0): [(1, 0, 3), (2, 4, 9)]})
    plain = json.loads(json.dumps(tracks.as_dict()))
    first = {
        "layer": 0,
        "head": 0,
        "position": 1,
        "first_step": 0,
        "last_step": 3,
        "kind": "moved",
        "successor": 1,
        "distance": 1,
    }
    assert plain["tracks"][0] == first
    assert plain["kinds"] == tracks.kinds
    assert len(plain["heads"]) == 6
    assert plain["heads"][0].items() >= {"layer": 0, "head": 0, "moves": 1}.items()
    assert plain["heads"][0]["drift_per_step"] > 0
    assert plain["followed"] == "column_sums"


def test_tracks_of_a_causal_trace_follow_its_last_queries():
    steps, keys = 24, 30
    columns = np.full((steps, 1, 1, keys), 0.1, np.float32)
    columns[..., 0] = 20  # the running sum stays where it is
    last_query = np.full((steps, 1, 1, keys), 0.001, np.float32)
    last_query[:12, ..., 0] = 0.9
    last_query[12:, ..., 8] = 0.9
    trace = SimpleNamespace(
        steps=steps, causal=True, column_sums=columns, last_query=last_query, tokens=np.zeros((steps, keys), np.int32)
    )
    tracks = track(find_sinks(trace))
    assert tracks.source == "last_query, window of 16"
    assert {one.position for one in tracks.tracks} == {0, 8}
    assert (tracks.main[5, 0, 0], tracks.main[-1, 0, 0]) == (0, 8)
    assert (tracks.heads[0].moves, tracks.heads[0].swaps) == (0, 1)  # over 16 queries both are sinks for a while


# Main sinks and moves


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


def test_a_stronger_column_that_is_no_sink_is_not_the_main_sink():
    columns = np.array([[[[9.0, 5.0, 7.0]]]])
    assert main_sinks(columns, np.array([[[[False, True, False]]]])).item() == 1


def make_main(seed=0, steps=15, layers=2, heads=3):
    rng = np.random.default_rng(seed)
    main = rng.integers(0, 6, (steps, layers, heads))
    return np.where(rng.random(main.shape) < 0.25, -1, main)


def movement_of(main):
    """Head movements of tracks whose main sinks are these."""
    _, layers, heads = main.shape
    planted = main[..., None] == np.arange(6)
    columns = np.where(planted, np.float32(9), np.float32(0.1))
    tracks = track(sinks_of(planted, columns))
    np.testing.assert_array_equal(tracks.main, main)
    assert [(head.layer, head.head) for head in tracks.heads] == [
        (layer, head) for layer in range(layers) for head in range(heads)
    ]
    return tracks.heads


def test_moves_are_counted_between_neighbouring_steps_that_both_have_a_sink():
    main = make_main()
    for head in movement_of(main):
        own = main[:, head.layer, head.head].tolist()
        assert head.moves == sum(a != b and a >= 0 and b >= 0 for a, b in itertools.pairwise(own))
        assert head.steps_with_sink == sum(a >= 0 for a in own)
        assert head.moves > 0


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


def test_drift_is_the_least_squares_slope():
    main = make_main(seed=1)
    for head in movement_of(main):
        own = main[:, head.layer, head.head]
        step = np.flatnonzero(own >= 0)
        assert head.drift_per_step == pytest.approx(np.polyfit(step, own[step], 1)[0], abs=1e-9)


def test_drift_needs_two_steps_with_a_sink():
    main = np.full((6, 1, 3), -1)
    main[2, 0, 0] = 4
    main[[1, 4], 0, 1] = 2, 5
    none, sloped, empty = movement_of(main)
    assert (none.drift_per_step, none.steps_with_sink) == (None, 1)
    assert sloped.drift_per_step == pytest.approx(1.0)
    assert sloped.moves == 0  # the steps between have no sink
    assert empty.drift_per_step is None


def test_a_main_sink_is_a_selected_column_whatever_it_holds():
    columns, selected = np.full((1, 1, 1, 4), -np.inf, np.float32), np.zeros((1, 1, 1, 4), bool)
    selected[..., 2] = True
    assert main_sinks(columns, selected).tolist() == [[[2]]]
