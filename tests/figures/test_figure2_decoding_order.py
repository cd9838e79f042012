"""Figure 2 says in which step each position is committed."""

from sudden import LENGTH, ORDER, PROMPT, STEPS

from sinkscope.figures.figure2_decoding_order import COMMITTED, MASKED, NEW, STATES, states_of
from sinkscope.figures.subject import subject_of


def test_it_lists_the_commits_in_order(draw, rows_of, sudden):
    rows = rows_of(draw("2", sudden))
    assert [(int(row["step_committed"]), int(row["position"])) for row in rows] == [(step, ORDER[step]) for step in range(STEPS)]
    assert [int(row["position_in_answer"]) for row in rows] == [ORDER[step] - PROMPT for step in range(STEPS)]


def test_every_position_is_masked_then_new_then_committed(sudden):
    states = states_of(subject_of(sudden))
    assert states.shape == (STEPS, LENGTH)
    for step in range(STEPS):
        for place in range(LENGTH):
            at = ORDER.tolist().index(PROMPT + place)
            assert STATES[states[step, place]] == (COMMITTED if at < step else NEW if at == step else MASKED)
