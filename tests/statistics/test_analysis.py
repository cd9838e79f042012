import json

import numpy as np
import pytest
from planted import NEWLINE, extras, make_trace, random_columns, sink_at

from sinkscope.errors import CallError
from sinkscope.statistics import Threshold, all_definitions, analyse, compare, definition_of, summarise
from sinkscope.statistics.analysis import PromptRows
from sinkscope.statistics.statistic import values_of

FEW = [Threshold(3.0), Threshold(5.0, "percent")]


def random_traces(count, seed=0, **more):
    for one in range(count):
        columns = random_columns([seed, one], **more)
        yield make_trace(columns, seed=one, **extras(columns, seed=one))


@pytest.fixture(scope="module")
def analysis():
    return analyse(random_traces(6), FEW, training={NEWLINE: 3, 7: 9, 8: 1, 5: 2})


def test_every_statistic_has_a_definition_and_every_definition_a_statistic(analysis):
    names = {one.name for one in analysis.statistics}
    assert all(definition_of(name) for name in names)
    defined = {name.removesuffix("_over_steps").removesuffix("_in") for name in names}
    assert defined == set(all_definitions())
    assert all(one.definition.text and one.definition.unit and one.definition.claim for one in analysis.statistics)


def test_a_mean_is_that_over_prompts_with_its_interval(analysis):
    summaries = [values_of(summarise(trace, FEW)) for trace in random_traces(6)]
    for name in ("movement.moves_per_head", "concentration.sinks_per_head", "norms.value_norm_auc"):
        (one,) = analysis.find(name, excess=3.0, unit="queries")
        place = (("excess", 3.0), ("unit", "queries"))
        each = [one[name, place] for one in summaries]
        assert one.value == pytest.approx(np.mean(each))
        assert min(each) <= one.low <= one.value <= one.high <= max(each)
        assert one.prompts == 6


def test_networks_of_another_shape_are_refused():
    with pytest.raises(CallError, match=r"traces of one model, found 2 layers × 3 heads and 2 layers × 4 heads"):
        analyse([*random_traces(1), *random_traces(1, heads=4)], FEW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{}, {"hidden": [{"rule": "top:1"}]}], "keys hidden in all traces or in none, found False and True; analyse"),
        ([{"hidden": [{"rule": "random:1"}]}, {"hidden": [{"rule": "top:1"}]}], "one rule of hiding, found random:1"),
        ([{}, {"sampler": {"cache": "block"}}], "expected one cache, found none and block"),
        ([{}, {"sampler": {"guidance": 2.0}}], "expected guidance in all traces or in none, found False and True"),
        ([{"dtype": "float32"}, {"dtype": "bfloat16"}], "expected one dtype, found float32 and bfloat16"),
        ([{"model": {"name": name, "weight_hash": name}} for name in "ab"], r"one model \(weights\), found a and b"),
    ],
)
def test_traces_that_may_not_be_pooled_are_refused(changes, message):
    two = list(random_traces(2))
    for trace, change in zip(two, changes, strict=True):
        trace.manifest = trace.manifest | change
    with pytest.raises(CallError, match=message):
        analyse(two, FEW)


def test_two_seeds_of_a_rule_and_a_trace_that_does_not_say_are_pooled():
    two = list(random_traces(2))
    for seed, trace in enumerate(two):
        trace.manifest = trace.manifest | {"hidden": [{"rule": f"random:1@seed={seed}"}]}
    two[0].manifest |= {"stack": "model", "attends_to": "model", "dtype": "float32"}
    assert analyse(two, FEW, choice=False).prompts == 2
    with pytest.raises(CallError, match="found one object twice"):
        analyse([two[0], two[0]], FEW)


def moving(speed, seed):
    rng = np.random.default_rng(seed)
    position = np.clip(15 + speed * (np.arange(12) - 6) + rng.integers(-2, 3, 12), 0, 29).astype(int)
    return make_trace(sink_at(position), seed=seed)


def test_two_sets_are_compared_paired_where_the_prompts_are_the_same():
    first, second = (
        analyse((moving(speed, seed) for seed in range(6)), [Threshold(3.0)], choice=False) for speed in (1, -1)
    )
    (drift,) = [one for one in compare(first, second) if one.name == "movement.drift"]
    assert drift.value == pytest.approx(-2, abs=0.3)
    assert drift.high < -1.5
    others = analyse((moving(-1, seed) for seed in range(20, 26)), [Threshold(3.0)], choice=False)
    (apart,) = [one for one in compare(first, others) if one.name == "movement.drift"]
    assert apart.value == pytest.approx(-2, abs=0.4)
    assert apart.low < apart.value < apart.high < -1
    assert all(one.value in (0, None) for one in compare(first, first))


def test_a_table_keeps_rows_apart_and_knows_what_a_prompt_lacks():
    table = PromptRows()
    table.add({("a", ()): 1.0, ("b", ()): 2.0})
    table.add({("c", ()): 3.0, ("a", ()): 4.0})
    table.add({("b", ()): 5.0})
    keys, values = table.whole({("late", ()): np.array([7.0, 8.0])})
    assert keys == (("a", ()), ("b", ()), ("c", ()), ("late", ()))
    np.testing.assert_array_equal(values, [[1, 2, np.nan, 7], [4, np.nan, 3, 8], [np.nan, 5, np.nan, np.nan]])


@pytest.mark.parametrize("columns", [random_columns(0, steps=1), random_columns(0, steps=2), np.ones((3, 1, 1, 30))])
def test_the_shortest_and_the_emptiest_trace_are_analysed_without_a_warning(columns):
    found = analyse([make_trace(columns, **extras(columns)) for _ in range(2)], FEW)
    json.dumps(found.as_dict(), allow_nan=False)
    assert found.prompts == 2
