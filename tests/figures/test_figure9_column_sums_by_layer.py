"""Figure 9 counts the columns of every layer."""

import numpy as np
from sudden import LAYERS, sudden_columns


def test_it_counts_the_columns_of_every_layer(draw, rows_of, sudden):
    drawn, (columns, _) = draw("9", sudden), sudden_columns()
    for layer in range(LAYERS):
        rows = rows_of(drawn, layer=layer)
        edges = [float(row["column_sum_from"]) for row in rows] + [float(rows[-1]["column_sum_to"])]
        assert [int(row["columns"]) for row in rows] == np.histogram(columns[:, layer], edges)[0].tolist()
        assert sum(int(row["columns"]) for row in rows) == columns[:, layer].size
