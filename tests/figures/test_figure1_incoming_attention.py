"""Figure 1 draws the columns of one head and their mean over all heads."""

import numpy as np
import pytest
from wandering import CAUSAL_STEPS, LENGTH, MOVING, POSITIONS, PROMPT, STEPS, wandering_columns

from sinkscope.figures.style import figure_style


def test_it_draws_the_columns_of_the_head_whose_sink_wanders(draw, rows_of, wandering):
    columns = wandering_columns()
    head = rows_of(draw("1", wandering), panel="head")
    assert {(row["layer"], row["head"]) for row in head} == {("1", "2")}
    assert len(head) == STEPS * POSITIONS
    for row in head:
        assert np.float32(row["column_sum"]) == columns[(int(row["step"]), *MOVING, int(row["position"]))]
    marked = [int(row["position"]) for row in head if row["marked"] == "1"]
    assert marked == [min(PROMPT + step, PROMPT + 12) for step in range(STEPS)]
    committed = [(int(row["step"]), int(row["position"])) for row in head if row["committed"] == "1"]
    assert committed == [(step, PROMPT + step) for step in range(LENGTH)]
    assert {row["token"] for row in head if row["step"] == "0" and int(row["position"]) >= PROMPT} == {"[M]"}


def test_it_draws_the_mean_over_all_heads(draw, rows_of, wandering):
    mean = rows_of(draw("1", wandering), panel="mean")
    dense = wandering_columns().astype(np.float64).mean(axis=(1, 2))
    found = np.array([float(row["column_sum"]) for row in mean]).reshape(STEPS, POSITIONS)
    np.testing.assert_allclose(found, dense, rtol=1e-6)
    assert [int(row["position"]) for row in mean if row["marked"] == "1"] == dense.argmax(axis=1).tolist()


def test_an_autoregressive_model_is_drawn_in_percent_of_the_newest_queries(draw, rows_of, wandering, causal):
    drawn = draw("1", wandering, causal)
    row = rows_of(drawn, model="my-llama", panel="head", step=CAUSAL_STEPS - 1, position=13)[0]
    newest = causal.last_query[-16:, MOVING[0], MOVING[1]]
    whole = causal.last_query[-16:].sum(axis=(0, 3)).mean()  # over heads; planted rows need not sum to one
    assert float(row["percent_of_attention"]) == pytest.approx(100 * newest[:, 13].sum() / whole, rel=1e-4)


def test_side_by_side_it_has_one_scale(draw, wandering, causal):
    with figure_style(wide=True):
        drawn = draw("1", wandering, causal)
    maps = [(axes, axes.get_images()[0]) for axes in drawn.sheet.axes if axes.get_images()]
    assert len(maps) == 4
    for pair in (maps[:2], maps[2:]):
        assert len({(image.norm.vmin, image.norm.vmax, image.norm.gamma) for _, image in pair}) == 1
        assert pair[0][1].norm.vmax == max(np.nanmax(image.get_array()) for _, image in pair)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes, _ in maps}) == 1
    assert "from all queries" in maps[0][0].get_title(loc="left")
    assert "from the 16 newest queries" in maps[1][0].get_title(loc="left")
