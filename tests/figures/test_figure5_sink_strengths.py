"""Figure 5 is the mean of the main sink's column sum, over the steps that have one."""

import numpy as np
import pytest
from wandering import EMPTY, HEADS, LAYERS, POSITIONS, wandering_columns


def test_it_is_the_mean_over_the_steps_with_a_main_sink(draw, rows_of, wandering):
    columns = wandering_columns()
    row_of = {(int(row["layer"]), int(row["head"])): row for row in rows_of(draw("5", wandering))}
    assert set(row_of) == set(np.ndindex(LAYERS, HEADS))
    for (layer, head), row in row_of.items():
        own = columns[:, layer, head]
        largest = [step.max() for step in own if step.max() - (step.sum() - step.max()) / (POSITIONS - 1) > 3]
        assert int(row["steps_with_main_sink"]) == len(largest)
        if largest:
            assert float(row["mean_main_sink_column_sum"]) == pytest.approx(np.mean(largest), rel=1e-6)
        else:
            assert row["mean_main_sink_column_sum"] == ""
    assert row_of[EMPTY]["steps_with_main_sink"] == "0"
