"""Figure 10 is Eq. 3 at every threshold of the grid."""

import pytest
from sudden import sudden_columns

from sinkscope.sinks import is_sink
from sinkscope.statistics import EPSILONS


@pytest.mark.parametrize("unit", ["queries", "percent"])
def test_it_is_eq_3_at_every_threshold(draw, rows_of, sudden, unit):
    columns, _ = sudden_columns()
    rows = rows_of(draw("10", sudden), unit=unit)
    assert [float(row["epsilon"]) for row in rows] == EPSILONS.tolist()
    shares = [1 - is_sink(columns, float(e), unit).mean() for e in EPSILONS]
    assert [float(row["share_not_sinks"]) for row in rows] == pytest.approx(shares)
    assert "agree only in steps of 100 queries (without a cache, S = 100 tokens)" in draw("10", sudden).caption
