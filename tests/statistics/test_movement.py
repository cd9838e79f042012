import numpy as np
import pytest
from planted import make_trace, sink_at, values_at

from sinkscope.sinks import find_sinks, movement_test, track
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.intervals import interval_of_means
from sinkscope.statistics.movement import Movement

POINT = Threshold(3.0)
STEPS = 20


def values_of(columns, **more):
    return values_at(Movement(), summarise(make_trace(columns, **more), [POINT]), POINT)


def test_a_static_sink_is_static():
    values = values_of(sink_at(np.full(STEPS, 7)))
    assert values["movement.moves_per_head", ()] == 0
    assert values["movement.drift", ()] == 0
    assert values["movement.residence", ()] == STEPS
    assert values["movement.longest_track", (("kind", "static"),)] == 1
    assert values["movement.tracks", (("kind", "static"),)] == 1
    assert np.isnan(values["movement.distance", ()])  # nothing moved


def test_a_moving_sink_moves_at_the_planted_speed():
    values = values_of(sink_at(3 + np.arange(STEPS) // 4 * 2))  # every four steps, two positions to the right
    assert values["movement.moves_per_head", ()] == 4
    assert values["movement.distance", ()] == 2
    assert values["movement.rightward", ()] == 1
    assert values["movement.residence", ()] == 4
    assert values["movement.track_steps", ()] == 4
    assert values["movement.drift", ()] == pytest.approx(np.polyfit(np.arange(STEPS), np.arange(STEPS) // 4 * 2, 1)[0])
    assert values["movement.tracks", (("kind", "moved"),)] == pytest.approx(4 / 5)
    assert values["movement.longest_track", (("kind", "moved"),)] == 1


def test_a_vanishing_sink_vanishes():
    values = values_of(sink_at(np.where(np.arange(STEPS) < 8, 5, -1)))
    assert values["movement.steps_with_sink", ()] == pytest.approx(0.4)
    assert values["movement.longest_track", (("kind", "vanished"),)] == 1
    assert values["movement.moves_per_head", ()] == 0
    assert values["movement.residence", ()] == 8


def test_heads_without_a_sink_count_as_none_and_not_as_static():
    position = np.full((STEPS, 2, 3), 5)
    position[:, 1] = -1
    values = values_of(sink_at(position))
    assert values["movement.longest_track", (("kind", "none"),)] == 0.5
    assert values["movement.longest_track", (("kind", "static"),)] == 0.5


def test_movement_by_depth():
    position = np.stack([np.full((STEPS, 3), 5), np.repeat(3 + np.arange(STEPS)[:, None], 3, axis=1)], axis=1)
    values = values_of(sink_at(position))
    assert values["movement.drift_in", (("layer", 0),)] == pytest.approx(0)
    assert values["movement.drift_in", (("layer", 1),)] == pytest.approx(1)
    assert values["movement.moves_in", (("layer", 1),)] == STEPS - 1
    assert values["movement.drift_by_depth", ()] == pytest.approx(1)
    assert values["movement.moves_by_depth", ()] == pytest.approx(STEPS - 1)
    assert np.isnan(values["movement.distance_in", (("layer", 0),)])
    assert values["movement.distance_in", (("layer", 1),)] == 1
    assert [values["movement.residence_in", (("layer", layer),)] for layer in (0, 1)] == [STEPS, 1]
    assert [values["movement.longest_track_in", (("layer", layer), ("kind", "static"))] for layer in (0, 1)] == [1, 0]
    relative = [
        values["movement.drift_relative_in", (("layer", layer), ("frontier", "leftmost_mask"))] for layer in (0, 1)
    ]
    assert relative == pytest.approx([-1, 0])  # one token is committed a step, from left to right


def test_a_sink_that_keeps_to_the_frontier_stands_still_relative_to_it():
    """One token is committed a step from left to right, from position 10 on; the sink stands two behind the leftmost
    mask.
    """
    values = values_of(sink_at(8 + np.arange(STEPS)))
    assert values["movement.drift", ()] == pytest.approx(1)
    assert values["movement.drift_relative", (("frontier", "leftmost_mask"),)] == pytest.approx(0)
    assert values["movement.drift_relative", (("frontier", "nearest_mask"),)] == pytest.approx(0)
    assert values["movement.drift_relative", (("frontier", "rightmost_mask"),)] == pytest.approx(1)
    edges = 10 + np.arange(STEPS) // 5 * 5 + 4
    slope = np.polyfit(np.arange(STEPS), 8 + np.arange(STEPS) - edges, 1)[0]
    assert values["movement.drift_relative", (("frontier", "block_edge"),)] == pytest.approx(slope)


def test_with_the_blocks_reversed_a_sink_at_the_frontier_drifts_left():
    trace = make_trace(np.ones((STEPS, 1, 1, 30)), order="right")
    right_edge = 29 - np.arange(STEPS) // 5 * 5
    values = values_of(sink_at(right_edge), order="right")
    assert values["movement.drift", ()] < -0.9
    assert values["movement.drift_relative", (("frontier", "block_edge"),)] == pytest.approx(0)
    assert trace.masked[0].sum() == 20


def test_without_blocks_there_is_no_block_edge():
    trace = make_trace(sink_at(np.full(STEPS, 4)))
    trace.manifest["sampler"] = {}
    values = values_at(Movement(), summarise(trace, [POINT]), POINT)
    assert np.isnan(values["movement.drift_relative", (("frontier", "block_edge"),)])


def test_a_step_without_a_commit_is_a_step():
    values = values_of(sink_at(np.full(STEPS, 4)), commit_every=3)
    assert values["movement.drift_relative", (("frontier", "leftmost_mask"),)] == pytest.approx(-1 / 3, abs=0.02)


def test_moves_and_drift_are_those_of_tracks():
    rng = np.random.default_rng(5)
    position = np.where(rng.random((STEPS, 2, 3)) < 0.3, -1, rng.integers(0, 30, (STEPS, 2, 3)))
    trace = make_trace(sink_at(position))
    values = values_at(Movement(), summarise(trace, [POINT]), POINT)
    tracks = track(find_sinks(trace))
    test = movement_test(tracks.main, shuffles=1)
    assert values["movement.moves_per_head", ()] == pytest.approx(test.moves_per_head)
    assert values["movement.drift", ()] == pytest.approx(test.drift_per_step)
    runs = sum(
        1
        for head in np.ndindex(2, 3)
        for t in range(STEPS)
        if position[(t, *head)] >= 0 and (t == 0 or position[(t - 1, *head)] != position[(t, *head)])
    )
    assert values["movement.residence", ()] == pytest.approx((position >= 0).sum() / runs)


def test_with_the_steps_shuffled_a_drift_is_found_at_its_error_rate():
    rng = np.random.default_rng(0)
    drifts = []
    for _ in range(200):
        moving = [3 + np.arange(STEPS)[rng.permutation(STEPS)] for _ in range(30)]
        drifts.append([np.polyfit(np.arange(STEPS), one, 1)[0] for one in moving])
    found = interval_of_means(np.array(drifts).T, resamples=1000)
    outside = int(((found.low > 0) | (found.high < 0)).sum())
    assert outside <= 24  # 200 × 0.05, and three standard deviations, and 30 prompts reach some 94 %


def test_a_drift_planted_in_noisy_prompts_is_found_with_its_interval():
    rng = np.random.default_rng(1)
    drifts = []
    for seed in range(8):
        position = np.clip(3 + np.arange(STEPS) + rng.integers(-2, 3, STEPS), 0, 29)
        drifts.append(values_of(sink_at(position), seed=seed)["movement.drift", ()])
    found = interval_of_means(np.array(drifts)[:, None])
    assert 0.8 < found.low[0] < found.mean[0] < found.high[0] < 1.2


def test_a_number_does_not_depend_on_how_many_thresholds_are_asked():
    trace = make_trace(sink_at(3 + np.arange(STEPS) // 4 * 2, noise=8.0, strength=14.0))
    many = [Threshold(0.04 * number) for number in range(1, 300)]  # some sinks exceed more than 255 of them
    for point in (many[20], many[-1]):
        found, alone = (values_at(Movement(), summarise(trace, points), point) for points in (many, [point]))
        assert found == pytest.approx(alone, nan_ok=True)
