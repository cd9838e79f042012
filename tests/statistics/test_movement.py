import numpy as np
import pytest
from planted import make_trace, sink_at, values_at

from sinkscope.sinks import find_sinks, is_sink, main_sinks, movement_test, track
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.tracking import SinksIn
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.movement import AnswerMain, Movement
from sinkscope.statistics.statistic import values_of

POINT = Threshold(3.0)
LONG = 20


def test_a_sink_that_keeps_to_the_frontier_stands_still_relative_to_it():
    """One token is committed a step from left to right, from position 10 on; the sink stands two behind the leftmost
    mask.
    """
    values = values_at(Movement(), summarise(make_trace(sink_at(8 + np.arange(LONG))), [POINT]), POINT)
    assert values["movement.drift", ()] == pytest.approx(1)
    assert values["movement.drift_relative", (("frontier", "leftmost_mask"),)] == pytest.approx(0)
    assert values["movement.drift_relative", (("frontier", "nearest_mask"),)] == pytest.approx(0)
    assert values["movement.drift_relative", (("frontier", "rightmost_mask"),)] == pytest.approx(1)
    edges = 10 + np.arange(LONG) // 5 * 5 + 4
    slope = np.polyfit(np.arange(LONG), 8 + np.arange(LONG) - edges, 1)[0]
    assert values["movement.drift_relative", (("frontier", "block_edge"),)] == pytest.approx(slope)


def test_moves_and_drift_are_those_of_tracks():
    rng = np.random.default_rng(5)
    position = np.where(rng.random((LONG, 2, 3)) < 0.3, -1, rng.integers(0, 30, (LONG, 2, 3)))
    trace = make_trace(sink_at(position))
    values = values_at(Movement(), summarise(trace, [POINT]), POINT)
    tracks = track(find_sinks(trace))
    test = movement_test(tracks.main, shuffles=1)
    assert values["movement.moves_per_head", ()] == pytest.approx(test.moves_per_head)
    assert values["movement.drift", ()] == pytest.approx(test.drift_per_step)
    runs = sum(
        1
        for head in np.ndindex(2, 3)
        for t in range(LONG)
        if position[(t, *head)] >= 0 and (t == 0 or position[(t - 1, *head)] != position[(t, *head)])
    )
    assert values["movement.residence", ()] == pytest.approx((position >= 0).sum() / runs)


STEPS, WIDTH, PROMPT = 12, 40, 30


def planted():
    """The prompt's queries always attend to 4; the answer's to 20, from step 6 on to 21, too few of them for a sink of
    all queries.
    """
    prompt, answer = (
        np.full((STEPS, 1, 2, WIDTH), 0.5 * count / WIDTH, np.float32) for count in (PROMPT, WIDTH - PROMPT)
    )
    prompt[..., 4] += 0.5 * PROMPT
    answer[:6, ..., 20] += 0.5 * (WIDTH - PROMPT)
    answer[6:, ..., 21] += 0.5 * (WIDTH - PROMPT)
    return make_trace(prompt + answer, prompt_length=PROMPT, column_sums_prompt=prompt)


def test_two_sinks_of_the_answers_queries_that_exchange_ranks_swap():
    """Head 0 attends to 20 and 21 from the first step to the last, a little more to one of them; head 1 goes from one
    to the other.
    """
    trace = planted()
    answer = trace.column_sums - trace.column_sums_prompt
    answer[:, 0, 0, 20], answer[:, 0, 0, 21] = ([1.9] * 6 + [2.1] * 6), ([2.1] * 6 + [1.9] * 6)
    trace.column_sums = trace.column_sums_prompt + answer
    thresholds = [Threshold(3.0), Threshold(8.0)]  # 8 is above what each of them has in head 0
    values = values_of(summarise(trace, thresholds))
    dense = answer * (WIDTH / (WIDTH - PROMPT))
    for threshold in thresholds:
        selected = is_sink(dense, threshold.excess)
        moved = MainMoves.of(main_sinks(dense, selected), SinksIn(selected))
        counted = ~np.isnan(moved.drift)
        for name in ("moves", "swaps"):
            assert values[f"answer_queries.{name}_per_head", threshold.place] == getattr(moved, name)[counted].mean()
    assert (
        values["answer_queries.swaps_per_head", thresholds[0].place]
        == values["answer_queries.moves_per_head", thresholds[0].place]
        == 1 / 2
    )
    assert values["answer_queries.changes_per_head", thresholds[0].place] == 1


@pytest.mark.parametrize("threshold", [Threshold(3.0), Threshold(8.0, "percent"), Threshold(19.4)])
def test_sinks_are_those_of_the_dense_columns(threshold):
    trace = planted()
    dense = (trace.column_sums - trace.column_sums_prompt) * (WIDTH / (WIDTH - PROMPT))
    main = main_sinks(dense, is_sink(dense, threshold.excess, threshold.unit))
    values = values_of(summarise(trace, [threshold]))
    assert values["answer_queries.steps_with_sink", threshold.place] == (main >= 0).mean()
    assert summarise(trace, [threshold]).kept(AnswerMain).position.tolist() == dense.argmax(-1).tolist()


@pytest.mark.parametrize("tolerance", [0, 1, 3])
def test_where_all_queries_are_the_answers_its_numbers_are_those_of_all(tolerance):
    columns = sink_at(np.array([4, 4, -1, 4, 4, 7, 7, -1, 7, 7, 3, -1, 3]), width=30, strength=12)
    trace = make_trace(columns, prompt_length=0, column_sums_prompt=np.zeros_like(columns))
    values = values_of(summarise(trace, [Threshold(3.0)], tolerance=tolerance))
    place = Threshold(3.0).place
    for name in ("steps_with_sink", "moves_per_head", "swaps_per_head", "drift", "drift_median", "drift_right"):
        assert values[f"answer_queries.{name}", place] == values[f"movement.{name}", place]
    assert values["answer_queries.steps_with_sink", place] == (10 / 13 if not tolerance else 1)


def test_drift_is_that_of_a_line_through_the_places_of_each_head():
    """Head 0 of the answer's queries goes from 20 to 21 half-way, head 1 stays at 25, the prompt's queries at 4."""
    trace = planted()
    trace.column_sums[:, 0, 1], trace.column_sums_prompt = (
        trace.column_sums_prompt[:, 0, 1].copy(),
        trace.column_sums_prompt,
    )
    trace.column_sums[:, 0, 1, 25] += WIDTH - PROMPT
    dense = (trace.column_sums - trace.column_sums_prompt) * (WIDTH / (WIDTH - PROMPT))
    slopes = [np.polyfit(np.arange(STEPS), dense[:, 0, head].argmax(-1), 1)[0] for head in range(2)]
    values = values_of(summarise(trace, [Threshold(3.0)]))
    place = (("excess", 3.0), ("unit", "queries"))
    assert slopes == pytest.approx([36 / 286, 0], abs=1e-9)  # 6 × 6 over 2 × Σ t² around the middle
    assert values["answer_queries.drift", place] == pytest.approx(np.mean(slopes))
    assert values["answer_queries.drift_median", place] == pytest.approx(np.median(slopes))
    assert values["answer_queries.drift_right", place] == 1 / 2
