"""Figure 5 is the mean of the main sink's column sum, over the steps that have one."""

import numpy as np
import pytest
from wandering import EMPTY, HEADS, LAYERS, LENGTH, MOVING, POSITIONS, PROMPT, STATIC, STEPS, wandering_columns


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


def test_it_follows_the_planted_heads(draw, rows_of, wandering):
    drawn = draw("7", wandering)
    moving, static = "most moves and clearest move", "longest stay"
    assert {row["series"] for row in rows_of(drawn)} == {moving, static, "committed"}, "flipping is no move"

    def path(name):
        rows = rows_of(drawn, series=name)
        return {(int(row["layer"]), int(row["head"])) for row in rows}, [int(row["position"]) for row in rows]

    assert path(moving) == ({MOVING}, [min(PROMPT + step, PROMPT + 12) for step in range(STEPS)])
    assert path(static) == ({STATIC}, [4] * STEPS)
    committed = rows_of(drawn, series="committed")
    assert [(int(row["step"]), int(row["position"])) for row in committed] == [
        (step, PROMPT + step) for step in range(LENGTH)
    ]


def test_of_an_autoregressive_model_it_follows_the_newest_queries(draw, rows_of, causal):
    rows = rows_of(draw("7", causal), layer=MOVING[0], head=MOVING[1])
    positions = {int(row["position"]) for row in rows if row["position"]}
    assert positions == {3, 13}, "the running sum stays at 3 throughout"


def test_a_head_that_is_asked_for_is_the_only_one(draw_head, rows_of, wandering):
    drawn = draw_head("7", wandering, MOVING)
    assert [int(row["position"]) for row in rows_of(drawn, series="asked for")] == [
        min(PROMPT + step, PROMPT + 12) for step in range(STEPS)
    ]
    assert {row["series"] for row in rows_of(drawn)} == {"asked for", "committed"}
    assert {row["position"] for row in rows_of(draw_head("7", wandering, EMPTY), series="asked for")} == {""}
