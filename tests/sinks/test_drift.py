import numpy as np
import pytest

from sinkscope.sinks.drift import block_edges, blocks_of, nearest_masks, relative_positions, slopes


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
