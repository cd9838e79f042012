"""Figure 4 draws the maps around the longest jump, and both keys' shares of attention over the steps."""

import numpy as np
import pytest
from sudden import POSITIONS, map_of, write_sudden

from sinkscope.figures import FigureError
from sinkscope.figures.figure4_sink_jump import absorbed
from sinkscope.figures.panels import LEAST_SHARE
from sinkscope.figures.subject import subject_of


def test_it_draws_both_maps_and_the_shares_over_steps(draw, rows_of, sudden):
    drawn = draw("4", sudden)
    for panel, step in (("before", 6), ("after", 7)):
        dense = map_of(sudden, step, 0, 1)
        rows = rows_of(drawn, panel=panel)
        assert len(rows) == (dense >= LEAST_SHARE).sum()
        for row in rows[::53]:
            assert (row["step"], row["layer"], row["head"]) == (str(step), "0", "1")
            assert float(row["attention"]) == pytest.approx(dense[int(row["query"]), int(row["key"])], rel=1e-4)
    shares = rows_of(drawn, panel="share of all attention", key=25)
    columns = sudden.column_sums[:, 0, 1]
    assert [float(row["attention"]) for row in shares] == pytest.approx(
        (columns[:, 25] / columns.sum(axis=-1)).tolist(), rel=1e-5
    )
    own = rows_of(drawn, panel="self-attention")
    assert [float(row["attention"]) for row in own] == pytest.approx(
        sudden.self_attention[:, 0, 1].mean(axis=-1).tolist(), rel=1e-5
    )


def test_the_caption_correlates_the_sink_with_self_attention(draw, sudden):
    columns = sudden.column_sums[:, 0, 1]
    largest = columns.max(axis=-1) / columns.sum(axis=-1)
    expected = np.corrcoef(largest, sudden.self_attention[:, 0, 1].mean(axis=-1))[0, 1]
    subject = subject_of(sudden)
    assert absorbed(subject, subject.highlights.jump) == pytest.approx(expected, abs=1e-6)
    caption = draw("4", sudden).caption
    assert f"self-attention {expected:+.2f}" in caption and "how much queries attend to themselves" in caption


def test_a_head_that_is_asked_for_is_drawn_or_said_not_to_move(draw_head, rows_of, sudden):
    rows = rows_of(draw_head("4", sudden, (0, 2)))
    assert {(row["layer"], row["head"]) for row in rows} == {("0", "2")}
    with pytest.raises(FigureError, match="no main sink of layer 0 head 0 moves from one step to the next"):
        draw_head("4", sudden, (0, 0))


def test_a_share_of_all_attention_counts_what_a_sink_token_has(draw, rows_of, sudden, tmp_path):
    columns = np.array(sudden.column_sums[:])
    columns *= 0.8 * POSITIONS / columns.sum(axis=-1, keepdims=True)
    token = POSITIONS - columns.sum(axis=-1, keepdims=True)
    trace = write_sudden(
        tmp_path / "token",
        columns,
        columns * sudden.masked[:].mean(axis=-1, dtype=np.float32)[:, None, None, None],
        sink_token=token,
    )
    jump = subject_of(trace).highlights.jump
    rows = [row for row in rows_of(draw("4", trace), panel="share of all attention") if row["key"] == str(jump.before)]
    shares = columns[:, jump.layer, jump.head, jump.before] / POSITIONS
    assert [float(row["attention"]) for row in rows] == pytest.approx(shares.tolist(), rel=1e-5)
