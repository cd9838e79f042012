"""Objects of one's own in a trace's place: what they cannot be is refused before anything is told of them, and nothing of them is kept."""

from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope import analyse, find_sinks, track
from sinkscope.errors import CallError
from sinkscope.statistics import summarise

STEPS, KEYS = 6, 12


def columns(**values):
    found = np.full((STEPS, 1, 1, KEYS), 0.1, np.float32)
    found[..., 2], found[..., 11] = 5, 6
    for value in values.values():
        found[3, 0, 0, 4] = value
    return found


def own(**changes):
    tokens = np.tile(np.arange(KEYS), (STEPS, 1))
    return SimpleNamespace(**{"steps": STEPS, "causal": False, "column_sums": columns(), "tokens": tokens} | changes)


WRONG = [
    ({"lengths": np.full(STEPS, -1)}, "lengths: expected 1 to the 12 keys of column_sums, found -1"),
    ({"lengths": np.full(STEPS, 99)}, "lengths: expected 1 to the 12 keys of column_sums, found 99"),
    ({"lengths": np.full(STEPS, 11.9)}, "lengths: expected whole numbers"),
    ({"lengths": np.full(3, 12)}, "lengths: expected whole numbers .* of 6 steps"),
    ({"tokens": np.full((STEPS, KEYS), -1)}, "lengths: expected 1 to the 12 keys of column_sums, found 0"),
    ({"tokens": np.full((STEPS, KEYS), "x")}, "tokens: expected an array of numbers"),
    ({"tokens": np.full((STEPS, KEYS), np.nan)}, "expected"),
    ({"tokens": np.full((STEPS, KEYS), 0.5)}, "tokens: expected whole numbers"),
    ({"tokens": None}, "tokens: expected an array that NumPy reads, found null"),
    ({"steps": 3}, r"column_sums: expected \[step, layer, head, key\] of 3 steps"),
    ({"steps": 6.0}, "steps: expected a whole number from 0 upwards, found 6.0"),
    ({"causal": None}, "causal: expected True or False, found null"),
    ({"causal": True}, "last_query: expected an array that NumPy reads, found null"),
    ({"column_sums": np.ma.masked_greater(columns(), 5.5)}, "column_sums: expected an array without a mask"),
    ({"column_sums": columns(a=np.nan)}, "step 3: column_sums: expected sums of attention, found nan"),
    ({"column_sums": columns(a=np.inf)}, "step 3: column_sums: expected sums of attention, found inf"),
    ({"column_sums": columns(a=1e38)}, "step 3: column_sums: expected sums of attention, found"),
    ({"column_sums": columns(a=-1)}, "step 3: column_sums: expected sums of attention, found -1.0"),
    ({"column_sums": columns() + 0j}, "step 0: column_sums: expected numbers, found ndarray complex64"),
    ({"column_sums": np.ones((STEPS, 1, 0, KEYS))}, r"column_sums: expected \[step, layer, head, key\]"),
    ({"manifest": "x"}, "manifest: expected an object by name, found 'x'"),
    (
        {"manifest": {"prompt_length": "abc"}},
        r"manifest\['prompt_length'\]: expected a whole number or None, found 'abc'",
    ),
    (
        {"manifest": {"prompt_length": 13}},
        r"manifest\['prompt_length'\]: expected 0 to the 12 tokens of the canvas, found 13",
    ),
    ({"manifest": {"vocabulary": {"a": "b"}}}, r"manifest\['vocabulary'\]: expected the numbers of tokens, found 'a'"),
]


@pytest.mark.parametrize("reads", [find_sinks, analyse, summarise])
@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_an_object_that_could_be_no_trace_is_refused(changes, message, reads):
    trace = own(**changes)
    with pytest.raises(CallError, match=message):
        reads([trace] if reads is analyse else trace)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masked": np.zeros((3, KEYS))}, r"masked: expected \[step, position\] of 6 steps, found \[3, 12\]"),
        ({"masked": np.zeros((STEPS, KEYS))}, "step 0: masked: expected 0 or 1, found ndarray float64"),
        (
            {"value_norms": np.ones(STEPS)},
            r"value_norms: expected \[step, layer, kv_head, position\] of 6 steps, found \[6\]",
        ),
        (
            {"value_norms": -np.ones((STEPS, 1, 1, KEYS))},
            "step 0: value_norms: expected norms from 0 upwards, found -1.0",
        ),
    ],
)
def test_what_is_analysed_beside_columns_is_checked_too(changes, message):
    find_sinks(own(**changes))
    with pytest.raises(CallError, match=message):
        analyse([own(**changes)])


def test_columns_beyond_a_canvas_are_not_counted_as_sinks():
    lengths = np.full(STEPS, KEYS - 1)
    with pytest.raises(
        CallError, match=r"step 0: column_sums: expected NaN beyond the 11 tokens of the canvas, found 6\.0"
    ):
        find_sinks(own(lengths=lengths))
    cut = columns()
    cut[..., 11] = np.nan
    assert set(find_sinks(own(lengths=lengths, column_sums=cut)).position) == {2}


@pytest.mark.parametrize("tensor", ["column_sums", "newest_columns"])
def test_sinks_are_those_of_the_moment_in_which_they_were_found(tensor):
    trace = own(newest_columns=columns(), tensors=("newest_columns",)) if tensor == "newest_columns" else own()
    sinks = find_sinks(trace)
    assert set(track(sinks).main.ravel()) == {11}
    getattr(trace, tensor)[..., 11] = 0
    assert set(track(sinks).main.ravel()) == {11}
    sinks.columns[:] = 7
    assert getattr(trace, tensor).max() == 5


def test_one_object_is_not_six_prompts():
    with pytest.raises(CallError, match="expected each trace once, as it is one prompt, found one object twice"):
        analyse([own()] + [own()] * 2)
    assert analyse([own(), own()]).prompts == 2
