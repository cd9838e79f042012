"""The heads and steps that figures pick out are the planted ones."""

import numpy as np
import pytest
from sudden import HEADS, LAYERS, POSITIONS, STEPS, sudden_columns, write_sudden

from sinkscope.figures import highlights
from sinkscope.figures.highlights import Flash, Jump, Split
from sinkscope.figures.subject import subject_of


def test_the_planted_places_are_found(sudden):
    found = subject_of(sudden).highlights
    assert found.jump == Jump(6, 0, 1, 3, 25, clean=True, swap=False)
    assert found.jump.distance == 22
    assert found.flash == Flash(6, 1, 3, 19, 11.0)
    assert (found.leftmost.layer, found.leftmost.head, found.leftmost.drift_per_step) == (0, 2, pytest.approx(-1))
    assert (found.most_static.layer, found.most_static.head) == (0, 0)


def test_the_clearest_split_is_on_means_of_groups_that_are_large_enough(sudden):
    split = subject_of(sudden).highlights.split
    columns, masked_columns = sudden_columns()
    best = (-1.0, None)
    for step in range(STEPS):
        masked = sudden.masked[step].astype(bool)
        if masked.sum() < 8 or (~masked).sum() < 8:
            continue
        for layer in range(LAYERS):
            for head in range(HEADS):
                of_masked = masked_columns[step, layer, head] / masked.sum()
                of_others = (columns - masked_columns)[step, layer, head] / (~masked).sum()
                one, other = of_masked.argmax(), of_others.argmax()
                clarity = min(of_masked[one] - of_others[one], of_others[other] - of_masked[other])
                if one != other and clarity > best[0]:
                    best = (clarity, (step, layer, head, one, other))
    assert (split.step, split.layer, split.head, split.masked_key, split.unmasked_key) == best[1] == (5, 1, 1, 20, 2)
    assert split.clarity == pytest.approx(best[0])
    assert isinstance(split, Split)


def test_groups_with_too_few_queries_are_not_compared(tmp_path, monkeypatch):
    columns, masked_columns = sudden_columns()
    trace = write_sudden(tmp_path / "one", columns[5:6], masked_columns[5:6])  # 16 masked queries, 13 others
    assert subject_of(trace).highlights.split is not None
    monkeypatch.setattr(highlights, "LEAST_QUERIES", 14)
    assert subject_of(trace).highlights.split is None


def test_without_movement_there_is_no_jump_no_flash_and_no_drift(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[:, 0, 0, 4] = 9
    still = subject_of(write_sudden(tmp_path / "still", columns, columns * 0.5)).highlights
    assert (still.jump, still.flash, still.leftmost) == (None, None, None)


def test_a_flash_is_neither_in_the_first_nor_in_the_last_step_nor_lasts_two(tmp_path):
    columns = np.full((STEPS, LAYERS, HEADS, POSITIONS), 0.5, np.float32)
    columns[0, 0, 0, 4] = columns[-1, 0, 1, 5] = 12
    columns[3:5, 0, 2, 6] = 11
    columns[[2, 8], 1, 3, 7] = 9, 10
    found = subject_of(write_sudden(tmp_path / "t", columns, columns * 0.5)).highlights
    assert found.flash == Flash(8, 1, 3, 7, 10.0)
