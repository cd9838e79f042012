"""A caller's steps, fed to a `PromptFeed`, are copied, and refused if their columns are not finite."""

import numpy as np
import pytest
from planted import extras, make_trace, random_columns

from sinkscope.errors import CallError
from sinkscope.statistics import PromptSettings, feed_of, summarise
from sinkscope.statistics.statistic import recorded_steps, values_of

SIZES = (2, 3, 5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_loop_may_fill_the_same_arrays_in_every_step(causal):
    columns = random_columns(4)
    more = {"last_query": (columns / columns.sum(axis=-1, keepdims=True)).astype(np.float32)} if causal else {}
    trace = make_trace(columns, **extras(columns), **more)
    trace.causal = causal
    feed, buffers = feed_of(PromptSettings.of(causal, trace.manifest)), {}
    for step in recorded_steps(trace):
        for name, array in step.items():
            buffers.setdefault(name, array.copy())[...] = array
        feed.feed(buffers)
    vocabulary = {int(token): text for token, text in trace.manifest["vocabulary"].items()}
    found, expected = values_of(feed.finish(vocabulary)), values_of(summarise(trace))
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal([found[key] for key in expected], [*expected.values()])


def step(**changes):
    found = {
        "tokens": np.arange(5),
        "masked": np.zeros(5, np.uint8),
        "written": np.full(5, -1),
        "column_sums": np.ones(SIZES),
    }
    return {**found, **changes}


def with_one(value):
    columns = np.ones(SIZES)
    columns[1, 2, 3] = value
    return columns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column_sums": with_one(np.nan)}, "column_sums: expected finite numbers"),
        ({"column_sums": with_one(np.inf)}, "column_sums: expected finite numbers"),
        ({"tokens": np.arange(4)}, "arrays: expected tokens .* of one canvas"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_they_are_counted(changes, message):
    feed = feed_of(PromptSettings())
    feed.feed(step())
    with pytest.raises(CallError, match=message):
        feed.feed(step(**changes))
    assert feed.steps == 1
    assert feed.finish().steps == 1


def test_a_canvas_of_an_autoregressive_model_does_not_shrink():
    feed = feed_of(PromptSettings.of(True, {}))
    feed.feed(step(last_query=np.ones(SIZES)))
    shorter = {name: array[..., :3] for name, array in step(last_query=np.ones(SIZES)).items()}
    with pytest.raises(
        CallError, match="expected a canvas that grows, found 3 tokens behind a step of 5; record each text by itself"
    ):
        feed.feed(shorter)
