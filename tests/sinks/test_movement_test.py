import json
from dataclasses import asdict

import numpy as np
import pytest
from planted import within_binomial

from sinkscope.sinks import SinksIn, main_sinks, movement_test
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.tracking import _Places

STEPS, LAYERS, HEADS = 24, 2, 3


def drifting(seed, slope=0.7, noise=2.0):
    """Main sinks that move with the steps, some steps without one."""
    rng = np.random.default_rng(seed)
    position = 30 + slope * np.arange(STEPS)[:, None, None] + noise * rng.standard_normal((STEPS, LAYERS, HEADS))
    return np.where(rng.random(position.shape) < 0.1, -1, position.astype(int))


def structureless(seed):
    """Main sinks at positions drawn anew each step; steps may be shuffled without loss."""
    rng = np.random.default_rng(seed)
    main = rng.integers(0, 12, (STEPS, LAYERS, HEADS))
    return np.where(rng.random(main.shape) < 0.1, -1, main)


@pytest.mark.parametrize("slope", [0.7, -0.7])
def test_a_planted_drift_is_found(slope):
    test = movement_test(drifting(0, slope), shuffles=199)
    assert test.p_drift == 1 / 200
    assert test.drift_per_step == pytest.approx(slope, abs=0.2)
    low, high = test.null_drift[1:]
    assert low < 0 < high
    assert abs(test.drift_per_step) > 1.3 * max(-low, high)


def test_without_structure_false_alarms_stay_at_their_rate():
    tests = [movement_test(structureless(seed), shuffles=39, seed=seed) for seed in range(100)]
    for p in ([test.p_moves for test in tests], [test.p_drift for test in tests]):
        assert np.mean(np.array(p) <= 0.05) <= 0.1
        assert 0.4 < np.mean(p) < 0.65  # neither anxious nor blind


def test_sinks_that_stay_and_then_stand_anywhere_do_not_drift():
    """Heads move together; steps shuffled singly, or heads apart, would find a drift in most such traces."""
    p = []
    for seed in range(100):
        main = np.repeat(np.random.default_rng(seed).integers(0, 30, (4, 1, 1)), 8, axis=0)
        test = movement_test(np.broadcast_to(main, (32, LAYERS, HEADS)), shuffles=39, seed=seed)
        assert test.block_steps >= 16
        p.append(test.p_drift)
    assert within_binomial(int((np.array(p) <= 0.05).sum()), 100)


def test_blocks_are_twice_as_long_as_a_moving_sink_stays():
    main = np.full((20, 1, 4), 7)  # the first head stands still, the last has no sink
    main[:, 0, 1] = np.repeat([3, 9, 4, 5], 5)
    main[:, 0, 2] = [1] * 2 + [-1] * 8 + [1] * 2 + [8] * 8
    main[:, 0, 3] = -1
    stay = (4 * 25 + 4 + 4 + 64) / (20 + 2 + 2 + 8)
    assert movement_test(main, shuffles=1).block_steps == int(np.ceil(2 * stay))
    assert movement_test(main[:, :, :1], shuffles=9).p_drift == 1


@pytest.mark.parametrize("main", [np.zeros((0, 2, 3), int), np.zeros((1, 2, 3), int), np.full((9, 2, 3), -1)])
def test_nothing_to_compare_is_no_finding(main):
    test = movement_test(main, shuffles=19)
    assert (test.p_moves, test.p_drift, test.heads) == (1.0, 1.0, 0)
    assert "NaN" not in json.dumps(asdict(test))


def test_moves_with_steps_shuffled_are_those_of_the_shuffled_trace():
    """Swaps among them are told by what was a sink in the two steps that now follow each other."""
    rng = np.random.default_rng(5)
    columns = rng.random((30, 2, 3, 9))
    selected = columns > 0.6
    main = main_sinks(columns, selected)
    places = _Places(main, SinksIn(selected))
    for order in (np.arange(30), rng.permutation(30), np.arange(30)[::-1]):
        expected = MainMoves.of(main[order], SinksIn(selected[order]))
        np.testing.assert_array_equal(places.moves(order), expected.moves)
    assert expected.swaps.sum() and expected.moves.sum()
    np.testing.assert_array_equal(_Places(main, None).moves(np.arange(30)), MainMoves.of(main).moves)


def test_the_median_head_and_the_share_that_goes_right_are_told_beside_the_mean():
    """One head of five races to the right, the others stand still or go left: the mean says right."""
    step = np.arange(40)
    main = np.stack([5 * step, 300 - step, 400 - step, 9 + 0 * step, 300 - step], axis=-1)[:, None]
    test = movement_test(main, shuffles=5)
    assert (test.drift_per_step, test.drift_median, test.drift_right) == (
        pytest.approx(2 / 5),
        pytest.approx(-1),
        pytest.approx(1 / 5),
    )
    assert test.blocks == 40 / test.block_steps
