"""Paths of main sinks at the level of statistics: the numbers of `analyse`, without a stored column."""

import numpy as np
import pytest
from planted import extras, make_trace, random_columns, sink_at
from scipy.stats import t

from sinkscope.sinks import POINTS, Point, analyse
from sinkscope.sinks.accumulators import Statistics
from sinkscope.sinks.accumulators.paths import path_keys

NAMES = ("tokens", "masked", "written", "column_sums", "column_sums_masked", "value_norms", "key_norms", "hidden_norms")


def traces(causal=False):
    for seed in range(6):
        columns = random_columns(seed, steps=12 + seed, width=34, sharpness=0.2).astype(np.float32)
        trace = make_trace(columns, prompt_length=14, seed=seed, order="random", commit_every=1 + seed % 2, **extras(columns, seed=seed))
        if causal:
            trace.causal, trace.last_query = True, (columns / np.float32(34)).astype(np.float32)
        yield trace


def counted(trace):
    found = Statistics(2, 3, causal=trace.causal, prompt_length=14, block=trace.manifest["sampler"]["block"])
    names = (*NAMES, "last_query") if trace.causal else NAMES
    for step in range(trace.steps):
        found.update({name: getattr(trace, name)[step] for name in names})
    found.finish()
    return found


def merged(all_traces):
    first, *others = (counted(trace) for trace in all_traces)
    for one in others:
        first.merge(one)
    return first


def rows_of(statistics):
    return {(row["name"], tuple(row["at"].items())): row for row in statistics.result()["statistics"]}


@pytest.mark.parametrize("causal", [False, True])
def test_every_number_is_that_of_the_analysis_of_whole_traces_at_every_point(causal):
    rows, found = rows_of(merged(traces(causal))), analyse(traces(causal), choice=False)
    assert len(rows) == len(POINTS) * len(path_keys(2))
    compared = 0
    for one in found.statistics:
        row = rows.pop((one.name, tuple(one.place.items())), None)
        if row is not None:
            compared += 1
            assert row["prompts"] == one.prompts, one
            assert row["value"] == (None if one.value is None else pytest.approx(one.value, rel=1e-6, abs=1e-7)), one
    assert compared == len(POINTS) * (len(path_keys(2)) - 10 * causal)  # no triggers there
    assert {name for name, _ in rows} <= ({"triggers.share", "triggers.over_chance"} if causal else set())


def test_intervals_are_students_over_prompts_and_none_below_five():
    values = [rows_of(counted(trace))["movement.drift", (("excess", 2.0), ("unit", "queries"))]["value"] for trace in traces()]
    row = rows_of(merged(traces()))["movement.drift", (("excess", 2.0), ("unit", "queries"))]
    half = t.ppf(0.975, 5) * np.std(values, ddof=1) / np.sqrt(6)
    assert (row["low"], row["high"]) == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    few = rows_of(merged(list(traces())[:4]))["movement.drift", (("excess", 2.0), ("unit", "queries"))]
    assert (few["low"], few["high"], few["prompts"]) == (None, None, 4)


def test_planted_triggers_are_found_against_shifted_commits():
    """The sink stands where the last token was committed: every move enters a position that has just been written."""
    at = np.concatenate([[3], 10 + np.arange(17)])
    trace = (make_trace(sink_at(at, strength=15), **extras(sink_at(at)), seed=seed) for seed in range(5))
    rows = rows_of(merged(trace))
    place = (("excess", 3.0), ("unit", "queries"))
    own = rows["triggers.over_chance", (*place, ("trigger", "own"))]
    assert own["p"] == 1 / 1000
    assert own["low"] > 0
    assert rows["triggers.share", (*place, ("trigger", "own"))]["value"] == 1
    assert rows["triggers.over_chance", (*place, ("trigger", "block"))]["p"] == 1


def test_the_draws_are_those_of_the_prompt_whichever_process_writes_it():
    one, other = list(traces())[:2]
    forward, backward = counted(one), counted(other)
    forward.merge(counted(other))
    backward.merge(counted(one))
    for name, array in forward.paths.arrays.items():
        np.testing.assert_array_equal(array, backward.paths.arrays[name])
    assert forward.paths.arrays["shifted"].std() > 0
    assert not np.array_equal(counted(one).paths.arrays["shifted"], counted(other).paths.arrays["shifted"])


def test_without_commits_or_moves_there_are_no_triggers():
    trace = next(traces())
    found = Statistics(2, 3, prompt_length=14)
    for step in range(trace.steps):
        found.update({name: getattr(trace, name)[step] for name in NAMES if name != "written"})
    found.finish()
    assert found.paths.arrays["moving"].sum() == 0
    row = rows_of(found)["triggers.over_chance", (("excess", 3.0), ("unit", "queries"), ("trigger", "own"))]
    assert (row["value"], row["low"], row["prompts"], "p" in row) == (None, None, 0, False)
    assert analyse([trace], [Point(3.0)], choice=False).find("triggers.share")
