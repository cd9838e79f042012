"""Figure 3 counts every column of every head, layer and step once."""

from dataclasses import replace

import numpy as np
import pytest
from wandering import HEADS, LAYERS, POSITIONS, STEPS, wandering_columns, write_wandering

from sinkscope.figures import find_figures
from sinkscope.figures.subject import subject_of


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


def test_side_by_side_the_axis_reaches_to_the_largest_column_of_all(draw, tmp_path, wandering):
    columns = wandering_columns()
    columns[0, 0, 0] = 0.001
    columns[0, 0, 0, 0] = 28.9
    larger = write_wandering(tmp_path / "larger", columns, name="org/larger")
    for traces in ((wandering, larger), (larger, wandering)):
        assert all(axes.get_xlim()[1] > 28.9 for axes in draw("3", *traces).sheet.axes)


def test_where_columns_add_up_to_less_than_the_tokens_no_line_is_drawn(draw, rows_of, tmp_path):
    """Behind a cache a step has fewer queries; a sink token takes attention; zeroed weights are lost."""
    hidden = np.ones((STEPS, LAYERS, POSITIONS), np.float32)
    hidden[3, :, :20] = np.nan
    for name, more in {
        "cached": {"hidden_norms": hidden},
        "sink": {"sink_token_columns": np.ones((STEPS, LAYERS, HEADS, 1), np.float32)},
    }.items():
        drawn = draw("3", write_wandering(tmp_path / name, wandering_columns(), **more))
        assert rows_of(drawn)[0]["threshold_column_sum"] in ("", "nan")
        assert not [line for line in drawn.sheet.axes[0].lines if line.get_linestyle() == "--"]
        assert (
            "no line parts the sinks from the rest" in drawn.caption
            and "right of it" not in drawn.sheet.axes[0].texts[0].get_text()
        )
        assert (
            "no line parts the sinks"
            in draw("9", write_wandering(tmp_path / f"{name}9", wandering_columns(), **more)).caption
        )


@pytest.mark.parametrize("name", ["3", "5", "9"])
def test_of_cross_attention_captions_say_who_sees_what(name, causal):
    """Each query of the decoder sees all keys of the encoder, of which there may be fewer than queries."""
    own = subject_of(causal)
    crossing = replace(own, manifest={**own.manifest, "stack": "decoder", "attends_to": "encoder"})
    said, found = (find_figures()[name].draw([one]).caption for one in (own, crossing))
    assert "early tokens" in said and "in cross-attention each of them sees every key" not in said
    assert "early tokens" not in found and "in cross-attention each of them sees every key" in found
    assert "fewer queries than there are tokens" not in found
