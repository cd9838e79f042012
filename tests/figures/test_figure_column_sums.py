"""Figures 3 and 9 count every column of every head, layer and step once; Figure 10 is Eq. 3 at every threshold."""

import numpy as np
import pytest
from sudden import sudden_columns
from wandering import HEADS, LAYERS, POSITIONS, STEPS, wandering_columns, write_wandering

from sinkscope.sinks import is_sink
from sinkscope.statistics import EPSILONS


def histogram(rows):
    """The edges of the bins, and their counts."""
    edges = [float(row["column_sum_from"]) for row in rows] + [float(rows[-1]["column_sum_to"])]
    return edges, [int(row["columns"]) for row in rows]


@pytest.mark.parametrize(("largest", "width"), [(9.5, 0.25), (28.9, 0.5)])
def test_figure_3_counts_every_column_once_in_bins_that_fit(draw, rows_of, tmp_path, largest, width):
    columns = wandering_columns()
    columns[0, 0, 0] = 0.001
    columns[0, 0, 0, 0] = largest
    rows = rows_of(draw("3", write_wandering(tmp_path / "t", columns)))
    edges, counts = histogram(rows)
    assert np.diff(edges) == pytest.approx(width)
    assert counts == np.histogram(columns, edges)[0].tolist() and sum(counts) == columns.size
    assert float(rows[0]["threshold_column_sum"]) == pytest.approx(1 + 3 * (1 - 1 / POSITIONS))


def test_where_a_sink_token_takes_attention_no_line_is_drawn(draw, rows_of, tmp_path):
    more = {"sink_token_columns": np.ones((STEPS, LAYERS, HEADS, 1), np.float32)}
    drawn = draw("3", write_wandering(tmp_path / "sink", wandering_columns(), **more))
    assert rows_of(drawn)[0]["threshold_column_sum"] == "nan"
    assert not [line for line in drawn.sheet.axes[0].lines if line.get_linestyle() == "--"]


def test_figure_9_counts_the_columns_of_every_layer(draw, rows_of, sudden):
    drawn, (columns, _) = draw("9", sudden), sudden_columns()
    for layer in range(columns.shape[1]):
        edges, counts = histogram(rows_of(drawn, layer=layer))
        assert counts == np.histogram(columns[:, layer], edges)[0].tolist() and sum(counts) == columns[:, layer].size


@pytest.mark.parametrize("unit", ["queries", "percent"])
def test_figure_10_is_eq_3_at_every_threshold(draw, rows_of, sudden, unit):
    columns, _ = sudden_columns()
    rows = rows_of(draw("10", sudden), unit=unit)
    assert [float(row["epsilon"]) for row in rows] == EPSILONS.tolist()
    shares = [1 - is_sink(columns, float(e), unit).mean() for e in EPSILONS]
    assert [float(row["share_not_sinks"]) for row in rows] == pytest.approx(shares)
