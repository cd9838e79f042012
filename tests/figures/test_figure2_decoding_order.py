"""Figure 2 says in which step each position is committed."""

import numpy as np
import pytest
from sudden import MASK, ORDER, STEPS

from sinkscope.figures.figure2_decoding_order import COMMITTED, MASKED, NEW, STATES, rightward, states_of
from sinkscope.figures.incoming_attention import commits_of
from sinkscope.figures.subject import FigureError, subject_of
from sinkscope.traces import TraceWriter, open_trace


def test_it_lists_the_commits_in_order(draw, rows_of, sudden):
    rows = rows_of(draw("2", sudden))
    assert [(int(row["step_committed"]), int(row["position"])) for row in rows] == [
        (step, ORDER[step]) for step in range(STEPS)
    ]


def test_without_a_record_of_them_commits_are_read_from_the_canvases(sudden):
    tokens, written = sudden.tokens[:], sudden.written[:]
    expected = [row for row in commits_of(written, tokens, MASK).tolist() if row[0] < STEPS - 1]  # none shows the last
    assert commits_of(None, tokens, MASK).tolist() == expected and len(expected) == STEPS - 1


def test_a_causal_model_has_no_order_to_show(draw, causal):
    with pytest.raises(FigureError, match="the trace is of a causal model"):
        draw("2", causal)


def test_the_caption_compares_each_step_with_the_one_before():
    """Steps 0, 2 and 3 commit; the commits of one step are not compared with each other."""
    written = np.array([(0, 4, 9), (0, 5, 9), (2, 6, 9), (2, 7, 9), (2, 1, 9), (3, 8, 9), (3, 5, 9)])
    assert rightward(written) == 2 / 5
    assert rightward(written[:2]) is None and rightward(written[:0]) is None


def test_a_position_that_is_masked_again_is_masked_until_it_is_written_anew(tmp_path):
    """Position 2 is committed in step 0, masked again in step 2 and written anew in step 5; position 3 in step 1."""
    mask, steps = 1, 7
    told = {0: (2, 9), 1: (3, 7), 2: (2, mask), 5: (2, 8)}
    canvas = np.array([5, 6, mask, mask], np.int32)
    (tmp_path / "run").mkdir()
    manifest = {"layers": ["a"], "heads": 1, "causal": False, "vocabulary": {}, "mask_id": mask, "prompt_length": 2}
    writer = TraceWriter(tmp_path / "run", manifest | {"model": {"name": "org/mine"}, "sampler": {"name": "mine"}})
    for step in range(steps):
        written = np.full(4, -1, np.int32)
        if step in told:
            written[told[step][0]] = told[step][1]
        sums = np.ones((1, 1, 4), np.float32)
        masked = (canvas == mask).astype(np.uint8)
        writer.add(
            {
                "tokens": canvas,
                "masked": masked,
                "written": written,
                "lengths": np.array(4, np.int32),
                "column_sums": sums,
            }
        )
        canvas = np.where(written >= 0, written, canvas).astype(np.int32)
    writer.close(complete=True)
    one = subject_of(open_trace(tmp_path / "run"))
    found = [[STATES[state] for state in states] for states in states_of(one).T]
    assert found == [[NEW, COMMITTED, COMMITTED, MASKED, MASKED, NEW, COMMITTED], [MASKED, NEW, *[COMMITTED] * 5]]
    assert one.written.tolist() == [[0, 2, 9], [1, 3, 7], [5, 2, 8]] and one.last_canvas.tolist() == [5, 6, 8, 7]
