import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkscope.sinks import Sinks, track
from sinkscope.sinks.drift import (
    ONE_STEP,
    block_edges,
    blocks_of,
    find_episodes,
    nearest_masks,
    relative_positions,
    slopes,
)


def test_slopes_are_those_of_polyfit_over_the_steps_that_have_a_position():
    rng = np.random.default_rng(0)
    position = np.where(rng.random((13, 2, 3)) < 0.3, np.nan, rng.integers(0, 40, (13, 2, 3)))
    found = slopes(position)
    for layer, head in np.ndindex(2, 3):
        step = np.flatnonzero(~np.isnan(position[:, layer, head]))
        assert found[layer, head] == pytest.approx(np.polyfit(step, position[step, layer, head], 1)[0])


def test_the_nearest_mask_is_that_of_a_search_ties_to_the_left():
    rng = np.random.default_rng(1)
    masked = rng.random((6, 17)) < 0.2
    masked[3] = False
    found = nearest_masks(masked)
    for step, j in np.ndindex(6, 17):
        masks = np.flatnonzero(masked[step])
        expected = min(masks, key=lambda m: (abs(m - j), m)) if len(masks) else np.nan
        np.testing.assert_equal(found[step, j], expected)


def test_positions_relative_to_every_frontier():
    masked = np.zeros((2, 12), bool)
    masked[0, [4, 5, 9]] = True
    main = np.array([[[7, -1]], [[3, 6]]])
    edges = np.array([8.0, np.nan])
    expected = {
        "nearest_mask": 2,
        "leftmost_mask": 3,
        "rightmost_mask": -2,
        "block_edge": -1,
    }  # 5 and 9 tie: the left one
    for frontier, distance in expected.items():
        found = relative_positions(main, frontier, masked, edges)
        assert found[0, 0, 0] == distance
        assert np.isnan(found[0, 0, 1])
        assert np.isnan(found[1]).all()  # no mask is left, and no block


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_blocks_are_read_from_the_commits_also_in_another_order(order):
    written = np.full((8, 5 + 12), -1)
    steps = iter(range(8))
    for block in order:
        for step in (next(steps), next(steps)):
            written[step, 5 + 4 * block + step % 2] = 3
    blocks = blocks_of(written, first=5, block=4)
    assert blocks.tolist() == [order[0]] * 2 + [order[1]] * 2 + [order[2]] * 4  # the last two steps commit nothing
    assert block_edges(blocks, 5, 4).tolist() == [5 + 4 * (one + 1) - 1 for one in blocks]


def dense_episodes(selected, tolerance):
    """[(head, position, first, last)] by walking along the steps."""
    found = []
    for head, position in np.ndindex(*selected.shape[1:]):
        steps = np.flatnonzero(selected[:, head, position])
        while len(steps):
            last = next((i for i in range(len(steps) - 1) if steps[i + 1] - steps[i] > tolerance + 1), len(steps) - 1)
            found.append((head, position, int(steps[0]), int(steps[last])))
            steps = steps[last + 1 :]
    return sorted(found, key=lambda run: (run[0], run[2], run[1]))


def dense_successor(runs, number, steps):
    head, position, first, last = runs[number]
    if last - first + 1 >= 0.95 * steps or last == steps - 1:
        return -1
    near = [
        (abs(p - position), other)
        for other, (h, p, f, e) in enumerate(runs)
        if h == head and p != position and abs(f - last) <= 1 and f > first and e > last
    ]
    return min(near)[1] if near else -1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), tolerance=st.integers(0, 3), share=st.floats(0, 1))
def test_episodes_and_successors_are_those_of_a_walk_along_the_steps(seed, tolerance, share):
    selected = np.random.default_rng(seed).random((14, 3, 7)) < share
    step, head, position = np.nonzero(selected)
    shuffled = np.random.default_rng(seed).permutation(len(step))
    found = find_episodes(step[shuffled], head[shuffled], position[shuffled], 14, tolerance)
    expected = dense_episodes(selected, tolerance)
    assert list(zip(found.head, found.position, found.first, found.last, strict=True)) == expected
    assert found.successor.tolist() == [dense_successor(expected, number, 14) for number in range(len(expected))]
    ordered = np.lexsort((step, position, head))
    again = find_episodes(step[ordered], head[ordered], position[ordered], 14, tolerance, ordered=True)
    assert (again.successor.tolist(), again.kind.tolist()) == (found.successor.tolist(), found.kind.tolist())
    fewer = find_episodes(step, head, position, 14, tolerance, short_too=False)
    short = fewer.kind == ONE_STEP
    assert fewer.kind.tolist() == found.kind.tolist() and (fewer.successor[short] == -1).all()
    assert fewer.successor[~short].tolist() == found.successor[~short].tolist()


def test_pairs_are_looked_at_in_pieces_without_a_difference(monkeypatch):
    step, head, position = np.nonzero(np.random.default_rng(1).random((20, 4, 9)) < 0.4)
    whole = find_episodes(step, head, position, 20)
    monkeypatch.setattr("sinkscope.sinks.drift.PAIRS", 7)
    pieces = find_episodes(step, head, position, 20)
    assert whole.successor.tolist() == pieces.successor.tolist()


def follow(selected, tolerance):
    columns = np.where(selected, 9.0, 0.5).astype(np.float32)
    rows = dict(zip(("step", "layer", "head", "position"), np.argwhere(selected).T, strict=True))
    rows |= dict.fromkeys(("column_sum", "visible_query_mean", "excess"), columns[selected])
    asked = {
        "threshold": 3.0,
        "unit": "queries",
        "shape": selected.shape,
        "selected_share": 0.0,
        "source": "column_sums",
    }
    return track(
        Sinks(**rows, **asked, token=rows["position"], columns=columns, moving=selected, ranked=columns),
        tolerance=tolerance,
    )


def test_a_dip_within_the_tolerance_does_not_end_a_track():
    selected = np.zeros((20, 1, 2, 6), bool)
    selected[2:8, 0, 1, 4] = selected[10:15, 0, 1, 4] = True  # two steps are missing
    assert [(one.first_step, one.last_step, one.kind) for one in follow(selected, 1).tracks] == [
        (2, 7, "reappeared"),
        (10, 14, "vanished"),
    ]
    (one,) = follow(selected, 2).tracks
    assert (one.first_step, one.last_step, one.kind) == (2, 14, "vanished")
    assert follow(selected, 2).main[8:10, 0, 1].tolist() == [4, 4]
    assert follow(selected, 0).main[8:10, 0, 1].tolist() == [-1, -1]
    selected[9, 0, 1, 2] = True  # another main sink in the dip: the first one is not put in its place
    assert follow(selected, 2).main[8:10, 0, 1].tolist() == [-1, 2]
