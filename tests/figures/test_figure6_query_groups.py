"""Figure 6 averages over the queries of each group, and draws the steps around a sink of one step."""

import pytest
from sudden import map_of

from sinkscope.figures import FigureError


def test_it_averages_over_the_queries_of_each_group(draw, rows_of, sudden):
    drawn = draw("6", sudden)
    masked, dense = sudden.masked[5].astype(bool), map_of(sudden, 5, 1, 1)
    for name, members in (("masked", masked), ("unmasked", ~masked)):
        rows = rows_of(drawn, panel=f"mean of {name} queries")
        assert [float(row["attention"]) for row in rows] == pytest.approx(
            dense[members].mean(axis=0).tolist(), rel=1e-4
        )
    assert {row["step"] for row in rows_of(drawn, panel="one step")} == {"5", "6", "7"}


def test_a_head_that_is_asked_for_is_drawn(draw_head, rows_of, sudden):
    rows = rows_of(draw_head("6", sudden, (1, 1)))
    assert {(row["layer"], row["head"]) for row in rows} == {("1", "1")}, "it has a split, and no sink of one step"
    layer = rows_of(draw_head("6", sudden, (1, None)))
    assert {(row["panel"], row["head"]) for row in layer if row["panel"] in ("split", "one step")} == {
        ("split", "1"),
        ("one step", "3"),
    }
    with pytest.raises(FigureError, match="in no step of layer 1 head 3 do 8 or more masked"):
        draw_head("6", sudden, (1, 3))
