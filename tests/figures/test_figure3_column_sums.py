"""Figure 3 counts every column of every head, layer and step once."""

import numpy as np
import pytest
from wandering import HEADS, LAYERS, POSITIONS, STEPS, wandering_columns, write_wandering


def test_it_counts_every_column_once(draw, rows_of, wandering):
    columns = wandering_columns()
    rows = rows_of(draw("3", wandering))
    edges = [float(row["column_sum_from"]) for row in rows] + [float(rows[-1]["column_sum_to"])]
    assert np.diff(edges) == pytest.approx(0.25)
    assert [int(row["columns"]) for row in rows] == np.histogram(columns, edges)[0].tolist()
    assert sum(int(row["columns"]) for row in rows) == columns.size
    assert float(rows[0]["threshold_column_sum"]) == pytest.approx(1 + 3 * (1 - 1 / POSITIONS))


def test_it_widens_its_bins_for_large_columns(draw, tmp_path):
    columns = wandering_columns()
    columns[0, 0, 0] = 0.001
    columns[0, 0, 0, 0] = 28.9
    drawn = draw("3", write_wandering(tmp_path / "wide", columns))
    edges = [float(row[1]) for row in drawn.rows] + [float(drawn.rows[-1][2])]
    assert np.diff(edges) == pytest.approx(0.5)
    assert [row[3] for row in drawn.rows] == np.histogram(columns, edges)[0].tolist()


def test_where_columns_add_up_to_less_than_the_tokens_no_line_is_drawn(draw, rows_of, tmp_path):
    """A sink token takes attention."""
    more = {"sink_token_columns": np.ones((STEPS, LAYERS, HEADS, 1), np.float32)}
    drawn = draw("3", write_wandering(tmp_path / "sink", wandering_columns(), **more))
    assert rows_of(drawn)[0]["threshold_column_sum"] == "nan"
    assert not [line for line in drawn.sheet.axes[0].lines if line.get_linestyle() == "--"]
    assert "there is none where columns do not add up" in drawn.caption
