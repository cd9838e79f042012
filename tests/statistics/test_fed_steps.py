"""Steps of one's own, fed to a `PromptFeed`: they are copied, and checked before anything of them is counted."""

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
        ({"column_sums": with_one(np.nan)}, "column_sums: expected sums of attention, found nan"),
        ({"column_sums": with_one(np.inf)}, "column_sums: expected sums of attention, found inf"),
        ({"column_sums": with_one(-1.0)}, "column_sums: expected sums of attention, found -1.0"),
        ({"column_sums": np.ones(SIZES) + 0j}, r"column_sums: expected numbers, found ndarray complex128 \[2, 3, 5\]"),
        ({"column_sums": np.ones((0, 3, 5))}, r"column_sums: expected \[layer 2, head 3, key 5\], found \[0, 3, 5\]"),
        ({"column_sums": np.ma.masked_greater(with_one(9.0), 5)}, "column_sums: expected an array without a mask"),
        (
            {"column_sums_masked": np.ones((2, 3, 4))},
            r"column_sums_masked: expected \[layer 2, head 3, key 5\], found \[2, 3, 4\]",
        ),
        (
            {"self_attention": np.ones((3, 3, 5))},
            r"self_attention: expected \[layer 2, head 3, position 5\], found \[3, 3, 5\]",
        ),
        (
            {"value_norms": np.ones((2, 1, 7))},
            r"value_norms: expected \[layer 2, kv_head 1, position 5\], found \[2, 1, 7\]",
        ),
        ({"masked": np.zeros(4, bool)}, r"masked: expected \[position 5\], found \[4\]"),
        ({"written": np.full(5, np.nan)}, "written: expected whole numbers, found ndarray float64"),
        ({"tokens": np.arange(5) / 2}, "tokens: expected whole numbers, found ndarray float64"),
        ({"tokens": np.array(list("abcde"))}, "tokens: expected an array of numbers, found ndarray"),
        ({"tokens": np.arange(5) - 1}, "tokens: expected token ids from 0 upwards, found -1"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_it_is_counted(changes, message):
    feed = feed_of(PromptSettings())
    feed.feed(step())
    with pytest.raises(CallError, match=f"arrays: {message}"):
        feed.feed(step(**changes))
    assert feed.steps == 1
    assert feed.finish().steps == 1


def test_every_step_has_the_heads_of_the_first():
    feed = feed_of(PromptSettings())
    feed.feed(step())
    with pytest.raises(CallError, match=r"column_sums: expected \[layer 2, head 3, key 5\], found \[2, 4, 5\]"):
        feed.feed(step(column_sums=np.ones((2, 4, 5))))
    feed.feed(step())
    assert feed.finish().by_step.top.shape == (2, 2, 3)


def test_a_canvas_of_an_autoregressive_model_does_not_shrink():
    feed = feed_of(PromptSettings.of(True, {}))
    feed.feed(step(last_query=np.ones(SIZES)))
    shorter = {name: array[..., :3] for name, array in step(last_query=np.ones(SIZES)).items()}
    with pytest.raises(
        CallError, match="expected a canvas that grows, found 3 tokens behind a step of 5; record each text by itself"
    ):
        feed.feed(shorter)
