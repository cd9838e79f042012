"""The heads and steps that figures pick out are the planted ones."""

from itertools import pairwise

import numpy as np
import pytest
from sudden import HEADS, LAYERS, POSITIONS, STEPS, sudden_columns, write_sudden

from sinkscope.figures.subject import Jump, beyond_chance, p_of_drift, p_of_move, stays_of, subject_of


def test_the_planted_places_are_found(sudden):
    found = subject_of(sudden)
    assert found.jump == Jump(6, 0, 1, 3, 25, swap=False, held=found.jump.held, stayed=5)
    assert found.flash == (6, 1, 3, 19, 11.0)
    assert [(one.layer, one.head) for one in found.moving] == [(0, 1), (0, 2)]
    assert [(one.layer, one.head, one.drift_per_step) for one in found.drifting] == [(0, 2, pytest.approx(-1))]
    assert (found.most_static.layer, found.most_static.head) == (0, 0)


def test_the_clearest_split_is_on_means_of_groups_that_are_large_enough(sudden):
    split = subject_of(sudden).split
    columns, masked_columns = sudden_columns()
    best = (-1.0, None)
    for step, layer, head in np.ndindex(STEPS, LAYERS, HEADS):
        masked = sudden.masked[step].astype(bool)
        if masked.sum() < 8 or (~masked).sum() < 8:
            continue
        of_masked = masked_columns[step, layer, head] / masked.sum()
        of_others = (columns - masked_columns)[step, layer, head] / (~masked).sum()
        one, other = of_masked.argmax(), of_others.argmax()
        clarity = min(of_masked[one] - of_others[one], of_others[other] - of_masked[other])
        if one != other and clarity > best[0]:
            best = (clarity, (step, layer, head, one, other))
    assert split[:5] == best[1] == (5, 1, 1, 20, 2)
    assert split[5] == pytest.approx(best[0])


def test_the_clearest_move_is_the_one_whose_places_hold_attention_for_long(sudden):
    found, (columns, _) = subject_of(sudden), sudden_columns()
    (move,) = [one for one in found.moves if (one.layer, one.head) == (0, 1)]
    share = columns[:, 0, 1] / POSITIONS
    assert move.held == pytest.approx(min(share[:7, 3].sum(), share[7:, 25].sum()), rel=1e-5)
    assert max(found.moves, key=lambda one: one.held) == move
    assert (found.clearest.layer, found.clearest.head) == (0, 1)


def test_a_swap_is_no_move(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.4, np.float32)
    columns[:2, 1, 1, [5, 8]] = [[8, 9], [9, 8]]
    found = subject_of(write_sudden(tmp_path / "t", columns, columns * 0.5))
    assert found.moves == [] and found.jump is None and [(one.before, one.after) for one in found.jumps] == [(8, 5)]


def test_where_nothing_moves_the_strongest_sink_is_the_clearest(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[:, 0, 0, 4], columns[:, 1, 2, 5] = 9, 12
    still = subject_of(write_sudden(tmp_path / "still", columns, columns * 0.5))
    assert (still.jump, still.flash, still.drifting) == (None, None, [])
    assert still.moves == [] and (still.clearest.layer, still.clearest.head) == (1, 2)


def test_a_head_that_is_asked_for_is_all_that_is_looked_at(sudden):
    found = subject_of(sudden, place=(-2, 2))  # counted from the end
    assert found.place == (0, 2) and {(move.layer, move.head) for move in found.moves} == {(0, 2)}
    for one in (found.only, found.most_static, found.clearest, *found.drifting):
        assert (one.layer, one.head) == (0, 2)
    assert (found.jump.head, found.flash[2]) == (2, 2)
    of_layer = subject_of(sudden, place=(1, None))
    assert of_layer.only is None and of_layer.flash == (6, 1, 3, 19, 11.0) and of_layer.split[2] == 1
    assert {one.layer for one in of_layer.heads} == {1}
    split = subject_of(sudden, place=(1, 1)).split
    assert split == subject_of(sudden).split, "the head keeps its number"


def test_a_flash_is_neither_in_the_first_nor_in_the_last_step_nor_lasts_two(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[0, 0, 0, 4] = columns[-1, 0, 1, 5] = 12
    columns[3:5, 0, 2, 6] = 11
    columns[[2, 8], 1, 3, 7] = 9, 10
    found = subject_of(write_sudden(tmp_path / "t", columns, columns * 0.5))
    assert found.flash == (8, 1, 3, 7, 10.0)


def test_only_stays_beyond_those_of_shuffled_steps_are_moves_and_only_several_moves_a_drift():
    """As many steps each; and heads without any effect pass as often as the level says, or less."""
    lasting, to_and_fro = np.repeat([0, 56], 12), np.tile([0, 56], 12)
    assert p_of_move(lasting, 12) <= 0.002 and p_of_move(to_and_fro, 1) == 1
    once, back, away = (
        [(0, 0, 11), (56, 12, 23)],
        [(0, 0, 9), (56, 10, 11), (0, 12, 23)],
        [(at, at, at) for at in range(8)],
    )
    assert p_of_drift(once) == 1 and p_of_drift(back) > 0.3 and p_of_drift(away) < 0.01
    rng, found = np.random.default_rng(3), []
    for _ in range(200):
        main = rng.choice([4, 9, 15], 24)
        stays = stays_of(main)
        stayed = max(min(before[2] - before[1], after[2] - after[1]) + 1 for before, after in pairwise(stays))
        found.append((p_of_move(main, stayed), p_of_drift(stays)))
    assert ((np.array(found) <= 0.05).mean(axis=0) < 0.08).all()
    assert beyond_chance(["a", "b", "c"], [0.001, 0.04, 0.2]) == ["a"] and beyond_chance([], []) == []
