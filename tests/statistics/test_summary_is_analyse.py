"""The level of statistics: the numbers of `analyse`, without a stored column."""

import numpy as np
import pytest
from planted import extras, make_trace, random_columns, sink_at
from scipy.stats import t

from sinkscope.statistics import PromptSettings, Summary, Threshold, all_definitions, analyse, document_of

NAMES = (
    "tokens",
    "masked",
    "written",
    "column_sums",
    "column_sums_masked",
    "column_sums_prompt",
    "self_attention",
    "value_norms",
    "key_norms",
    "hidden_norms",
    "output_norms",
)


def traces(causal=False):
    for seed in range(6):
        columns = random_columns(seed, steps=12 + seed, width=40, sharpness=0.2).astype(np.float32)
        columns[:, 0, 1] = 1  # a head without a sink
        trace = make_trace(
            columns,
            prompt_length=14,
            seed=seed,
            order="random",
            commit_every=1 + seed % 2,
            **extras(columns, seed=seed),
        )
        trace.column_sums_prompt = (columns - trace.column_sums_masked) * np.float32(0.6)
        if causal:
            trace.causal, trace.last_query = True, (columns / np.float32(40)).astype(np.float32)
            del trace.column_sums_masked, trace.column_sums_prompt
        yield trace


def counted(trace, names=NAMES):
    """A prompt as a recorder gives it, a step at a time."""
    feed = Summary.feed(PromptSettings.of(trace.causal, trace.manifest))
    names = [name for name in (*names, "last_query") if hasattr(trace, name)]
    for step in range(trace.steps):
        feed.feed({name: getattr(trace, name)[step] for name in names})
    return Summary.of(feed.finish({int(token): text for token, text in trace.manifest["vocabulary"].items()}))


def merged(all_traces):
    first, *others = (counted(trace) for trace in all_traces)
    for one in others:
        first.merge(one)
    return first


def rows_of(statistics):
    return {(row["name"], tuple(row["at"].items())): row for row in document_of(statistics)["statistics"]}


ELSEWHERE = ("composition.token", "composition.token_on_canvas", "agreement.prompts_place_over_other_heads")
ELSEWHERE = (*ELSEWHERE, "agreement.prompts_class_over_other_heads")
"""What only `analyse` tells."""


@pytest.mark.parametrize("causal", [False, True])
def test_every_number_is_that_of_the_analysis_of_whole_traces_at_every_point(causal):
    rows, found = rows_of(merged(traces(causal))), analyse(traces(causal), choice=False)
    for one in found.statistics:
        if one.name in ELSEWHERE:
            continue
        row = rows.pop((one.name, tuple(one.place.items())))
        assert row["prompts"] == one.prompts, one
        assert row["value"] == (None if one.value is None else pytest.approx(one.value, rel=1e-6, abs=1e-7)), one
        assert row.get("p") == one.p, one
    assert {name for name, _ in rows} == ({"triggers.share", "triggers.over_chance"} if causal else set())


def test_nothing_is_left_out_but_what_the_docs_say():
    names = {name for name, _ in rows_of(next(map(counted, traces())))}
    only_traces = {
        name
        for name in all_definitions()
        if name not in {one.removesuffix("_over_steps").removesuffix("_in") for one in names}
    }
    assert only_traces == {*ELSEWHERE, *(f"choice.{one}" for one in ("all", "class", "position", "mask_state"))} | {
        "composition.times_training",
        "composition.frequency_correlation",
    }


def test_the_curve_over_epsilon_is_told_for_the_lengths_that_occur():
    columns = random_columns(3, layers=4, heads=2, width=70)
    rows = document_of(counted(make_trace(columns, **extras(columns))))["statistics"]
    assert {row["at"]["positions"] for row in rows if "positions" in row["at"]} == {"any", "up to 128"}


def test_agreement_between_prompts_of_planted_sinks():
    """One head at 5 in every prompt; the other in a place of its own each time: half the pairs of a head agree."""
    found = None
    for prompt in range(4):
        position = np.stack([np.full(8, 5), np.full(8, 10 * prompt + 2)], axis=1)[:, None]
        columns = sink_at(position, width=40)
        one = counted(make_trace(columns, seed=prompt, **extras(columns)))
        found = one if found is None else (found.merge(one), found)[1]
    rows = rows_of(found)
    row = rows["agreement.prompts_place", (("excess", 3.0), ("unit", "queries"))]
    assert (row["value"], row["low"], row["prompts"]) == (0.5, None, 4)
    assert (
        rows_of(counted(make_trace(columns, **extras(columns))))[
            "agreement.prompts_place", (("excess", 3.0), ("unit", "queries"))
        ]["value"]
        is None
    )  # one prompt, no pair


def test_intervals_are_students_over_prompts_and_none_below_five():
    values = [
        rows_of(counted(trace))["movement.drift", (("excess", 2.0), ("unit", "queries"))]["value"] for trace in traces()
    ]
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
    for name, array in forward.to_arrays().items():
        np.testing.assert_array_equal(array, backward.to_arrays()[name])
    assert forward.arrays["profiles.shifted"].std() > 0
    assert not np.array_equal(counted(one).arrays["profiles.shifted"], counted(other).arrays["profiles.shifted"])


def test_without_commits_or_moves_there_are_no_triggers():
    trace = next(traces())
    found = counted(trace, [name for name in NAMES if name != "written"])
    assert found.arrays["profiles.moving"].sum() == 0
    row = rows_of(found)["triggers.over_chance", (("excess", 3.0), ("unit", "queries"), ("trigger", "own"))]
    assert (row["value"], row["low"], row["prompts"], "p" in row) == (None, None, 0, False)
    assert analyse([trace], [Threshold(3.0)], choice=False).find("triggers.share")
