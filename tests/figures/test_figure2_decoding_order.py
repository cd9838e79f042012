"""Figure 2 says in which step each position is committed."""

import numpy as np
import pytest
from sudden import MASK, ORDER, PROMPT, STEPS

from sinkscope.figures.figure_steps import COMMITTED, MASKED, NEW, STATES, rightward, states_of
from sinkscope.figures.subject import FigureError, subject_of
from sinkscope.traces import open_trace


def with_tensors(folder, **changed):
    """The subject of a trace with other tensors in memory; None for one that it does not hold."""
    trace = open_trace(folder)
    vars(trace)["tensors"] = tuple(name for name in trace.tensors if changed.get(name, 0) is not None)
    vars(trace).update(changed)
    return subject_of(trace)


def test_it_lists_the_commits_in_order(draw, rows_of, sudden):
    rows = rows_of(draw("2", sudden))
    assert [(int(row["step_committed"]), int(row["position"])) for row in rows] == [
        (step, ORDER[step]) for step in range(STEPS)
    ]


def test_without_a_record_of_them_commits_are_read_from_the_canvases(sudden):
    expected = [row for row in subject_of(sudden).written.tolist() if row[0] < STEPS - 1]  # none shows the last
    without = with_tensors(sudden.folder, written=None)
    assert without.written.tolist() == expected and len(expected) == STEPS - 1


def test_a_causal_model_has_no_order_to_show(draw, causal):
    with pytest.raises(FigureError, match="the trace is of a causal model"):
        draw("2", causal)


def test_the_caption_compares_each_step_with_the_one_before():
    """Steps 0, 2 and 3 commit; the commits of one step are not compared with each other."""
    written = np.array([(0, 4, 9), (0, 5, 9), (2, 6, 9), (2, 7, 9), (2, 1, 9), (3, 8, 9), (3, 5, 9)])
    assert rightward(written) == 2 / 5
    assert rightward(written[:2]) is None and rightward(written[:0]) is None


def test_a_position_that_is_masked_again_is_written_anew(sudden):
    """Position 2 is committed in step 0, masked again in step 2 and written anew in step 5; position 3 in step 1."""
    mask, steps = MASK, 7
    written, tokens = np.full((steps, 4), -1), np.array([[5, 6, mask, mask]] * steps)
    written[[0, 1, 2, 5], [2, 3, 2, 2]] = 9, 7, mask, 8
    for step in range(steps - 1):
        tokens[step + 1] = np.where(written[step] >= 0, written[step], tokens[step])
    one = with_tensors(sudden.folder, tokens=tokens, written=written)
    assert one.written.tolist() == [[0, 2, 9], [1, 3, 7], [5, 2, 8]]
    assert one.last_canvas.tolist() == [5, 6, 8, 7]


def test_the_canvas_is_masked_until_a_position_is_written(sudden):
    for position, states in enumerate(states_of(subject_of(sudden)).T, PROMPT):
        when = ORDER.tolist().index(position)
        expected = [MASKED] * when + [NEW] + [COMMITTED] * (STEPS - when - 1)
        assert [STATES[state] for state in states] == expected[:STEPS]
