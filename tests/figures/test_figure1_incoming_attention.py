"""Figure 1 draws the columns of one head and their mean over all heads."""

import numpy as np
import pytest
from wandering import (
    CAUSAL_STEPS,
    EMPTY,
    FLIPPING,
    LENGTH,
    MOVING,
    POSITIONS,
    PROMPT,
    STEPS,
    wandering_columns,
    write_wandering,
)

from sinkscope.figures.style import Cut, figure_style


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


def test_an_autoregressive_model_is_drawn_in_percent_of_the_newest_queries(draw, rows_of, wandering, causal):
    drawn = draw("1", wandering, causal)
    row = rows_of(drawn, model="my-llama", panel="head", step=CAUSAL_STEPS - 1, position=13)[0]
    newest = causal.last_query[-16:, MOVING[0], MOVING[1]]
    assert float(row["percent_of_attention"]) == pytest.approx(100 * newest[:, 13].sum() / newest.sum(), rel=1e-4)


def maps_of_figure(drawn):
    return [(axes, axes.get_images()[0]) for axes in drawn.sheet.axes if axes.get_images()]


def test_side_by_side_models_have_one_scale(draw, wandering, causal):
    with figure_style(wide=True):
        maps = maps_of_figure(draw("1", wandering, causal))
    for row in (maps[:2], maps[2:]):
        expected = max(np.nanquantile(np.nanmax(np.asarray(image.get_array()), axis=1), 0.95) for _, image in row)
        for _, image in row:
            assert (image.norm.vmin, image.norm.vmax, image.norm.gamma) == (0, pytest.approx(expected), 0.5)
    assert maps_of_figure(draw("1", wandering))[0][1].norm.gamma == 1, "linear"
    assert "from all queries" in maps[0][0].get_title(loc="left")
    assert "from the 16 newest queries" in maps[1][0].get_title(loc="left")


def said(drawn):
    return drawn.sheet.get_suptitle().replace("\n", " ")


def test_the_title_says_what_the_numbers_bear_out(draw, wandering, causal):
    """The sink that wanders drifts; the one that flips to and fro, and the one that changes its rank, do not move."""
    rest = "is the main sink in 1 of 6 heads; main sinks move beyond chance in"
    expected = rf"org/planted: “▯” (4) {rest} 1 my-llama: “\$x\$” (3) {rest} none"
    assert said(draw("1", wandering, causal)) == expected


def test_a_sink_that_stays_and_one_that_moves_and_no_sink_are_told(draw, tmp_path):
    columns = np.full((STEPS, 2, 3, POSITIONS), 0.5, np.float32)
    none = write_wandering(tmp_path / "none", columns)
    assert said(draw("1", none)) == "org/planted: no head has a sink by Eq. 3"
    columns[4:, 1, 1, 3] = 9
    one = write_wandering(tmp_path / "one", columns)
    stays = r"org/planted: “\$x\$” (3) is the main sink in 1 of 6 heads; main sinks move beyond chance in"
    assert said(draw("1", one)) == f"{stays} none"
    columns[:10, 0, 0, 3] = columns[10:, 0, 0, 20] = 8
    assert said(draw("1", write_wandering(tmp_path / "two", columns))) == f"{stays} 1".replace("1 of", "2 of")


def test_a_head_that_is_asked_for_is_drawn(draw_head, rows_of, wandering):
    rows = rows_of(draw_head("1", wandering, FLIPPING))
    assert {(row["panel"], row["layer"], row["head"]) for row in rows} == {("head", "1", "0"), ("mean", "1", "all")}
    columns = wandering_columns()
    of = {"mean": columns[:, 1].mean(axis=1), "head": columns[:, FLIPPING[0], FLIPPING[1]]}
    for row in rows:
        assert float(row["column_sum"]) == pytest.approx(of[row["panel"]][int(row["step"]), int(row["position"])])
    empty = draw_head("1", wandering, EMPTY)
    assert said(empty) == "org/planted: no head of layer 0 head 2 has a sink by Eq. 3"
    two = "org/planted: “Tom” (2) is the main sink in 10 of 19 steps; "
    assert said(draw_head("1", wandering, FLIPPING)) == (
        f"{two}18 moves, no more than with the steps shuffled, and 0 swaps of rank"
    )


def test_a_long_prompt_is_cut_where_nothing_stands():
    cut = Cut.around([0, 100, 103, *range(290, 300)], 300)
    assert cut.windows == ((0, 5), (96, 108), (286, 300))
    assert (cut.places[4], cut.places[96], cut.places[286]) == (4, 8, 23) and np.isnan(
        cut.places[[5, 95, 108, 285]]
    ).all()
    assert {0, 96, 286} <= set(cut.ticks())
    whole = Cut.around([33, 60], 90)
    assert (whole.windows, whole.ticks()) == (((0, 90),), list(range(0, 90, 10)))
