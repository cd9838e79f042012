"""Figure 6 averages over the queries of each group, and draws the steps around a sink of one step."""

import pytest
from sudden import map_of


def test_it_averages_over_the_queries_of_each_group(draw, rows_of, sudden):
    drawn = draw("6", sudden)
    masked, dense = sudden.masked[5].astype(bool), map_of(sudden, 5, 1, 1)
    for name, members in (("masked", masked), ("unmasked", ~masked)):
        rows = rows_of(drawn, panel=f"mean of {name} queries")
        assert [float(row["attention"]) for row in rows] == pytest.approx(dense[members].mean(axis=0).tolist(), rel=1e-4)
    assert {row["step"] for row in rows_of(drawn, panel="one step")} == {"5", "6", "7"}
