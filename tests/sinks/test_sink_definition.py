import numpy as np
import pytest
import torch
from closeness import assert_close

from sinkscope.errors import CallError
from sinkscope.sinks import excess_of, in_unit, is_sink, last_query_window

STEPS, LAYERS, HEADS, KEYS = 4, 2, 3, 11


def make_columns(lengths=(11, 9, 6, 10), seed=0):
    """Column sums with a few strong ones; each head's sum to the number of queries; NaN beyond the lengths."""
    rng = np.random.default_rng(seed)
    columns = np.full((STEPS, LAYERS, HEADS, KEYS), np.nan, np.float32)
    for step, length in enumerate(lengths):
        share = rng.random((LAYERS, HEADS, length)) ** 6
        columns[step, ..., :length] = length * share / share.sum(axis=-1, keepdims=True)
    return columns


def dense_excess(columns):
    excess = np.full(columns.shape, np.nan)
    for *head, j in np.argwhere(~np.isnan(columns)):
        others = [c for k, c in enumerate(columns[tuple(head)]) if k != j and not np.isnan(c)]
        excess[(*head, j)] = columns[(*head, j)] - np.mean(others)
    return excess


@pytest.mark.parametrize(
    ("unit", "epsilon"), [("queries", 0.0), ("queries", 3.0), ("percent", 0.0), ("percent", 30.0), ("mean", 0.25)]
)
def test_sinks_are_those_of_the_dense_loop(unit, epsilon):
    """Nothing beyond a length counts."""
    columns = make_columns()
    total = np.array([sum(c for c in head if not np.isnan(c)) for head in columns.reshape(-1, KEYS)])
    factor = {"queries": 1, "percent": 100 / total, "mean": 1 / total}[unit]
    dense = (columns.reshape(-1, KEYS) * np.reshape(factor, (-1, 1))).reshape(columns.shape)
    assert_close(in_unit(columns, unit), dense, terms=KEYS, dtype=torch.float32)
    assert_close(excess_of(in_unit(columns, unit)), dense_excess(dense), terms=KEYS, dtype=torch.float32)
    expected = dense_excess(dense) > epsilon
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(is_sink(columns, epsilon, unit), expected)


@pytest.mark.parametrize(
    ("epsilon", "unit", "says"),
    [
        (1.0, "mean", "found 1.0 in mean; on means 1 can never hold, .* 'queries'"),
        (-0.1, "queries", "expected an excess from 0 upwards"),
        (np.nan, "queries", "expected an excess from 0 upwards"),
    ],
)
def test_a_threshold_that_cannot_mean_what_was_asked_is_refused(epsilon, unit, says):
    with pytest.raises(CallError, match=says):
        is_sink(make_columns(), epsilon, unit)
    is_sink(make_columns(), 0.999, "mean")


@pytest.mark.parametrize(("length", "published"), [(64, 3.953), (512, 3.994)])
def test_in_sums_the_rule_reads_c_above_one_plus_epsilon(length, published):
    threshold = 1 + 3 * (1 - 1 / length)
    assert round(threshold, 3) == published
    for column, expected in ((threshold - 1e-3, False), (threshold + 1e-3, True)):
        columns = np.full((1, 1, length), (length - column) / (length - 1))
        columns[..., 5] = column
        found = is_sink(columns, 3.0)
        assert found[0, 0, 5] == expected
        assert found.sum() == expected


@pytest.mark.parametrize("window", [1, 16])
def test_the_window_sums_the_newest_rows(window):
    rng = np.random.default_rng(5)
    steps, first = 20, 6
    rows = np.full((steps, LAYERS, HEADS, first + steps - 1), np.nan, np.float32)
    for step in range(steps):
        rows[step, ..., : first + step] = rng.random((LAYERS, HEADS, first + step))
    found = last_query_window(rows, window)
    assert found.dtype == np.float32
    for step in range(steps):
        length = first + step
        expected = np.zeros((LAYERS, HEADS, length))
        for back in range(max(0, step - window + 1), step + 1):
            expected[..., : first + back] += rows[back, ..., : first + back]
        assert_close(found[step, ..., :length], expected, terms=window)
        assert np.isnan(found[step, ..., length:]).all()
