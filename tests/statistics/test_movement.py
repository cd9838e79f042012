import numpy as np
import pytest
from planted import make_trace, sink_at, values_at

from sinkscope.sinks import find_sinks, movement_test, track
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.movement import Movement

POINT = Threshold(3.0)
STEPS = 20


def values_of(columns, **more):
    return values_at(Movement(), summarise(make_trace(columns, **more), [POINT]), POINT)


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
