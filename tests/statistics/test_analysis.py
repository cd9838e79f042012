import json
import re
from pathlib import Path

import numpy as np
import pytest
from planted import NEWLINE, extras, make_trace, random_columns, sink_at

import sinkscope
from sinkscope.commands.analyse import Analyse
from sinkscope.errors import CallError
from sinkscope.statistics import (
    THRESHOLDS,
    Statistic,
    Threshold,
    all_definitions,
    all_statistics,
    analyse,
    compare,
    definition_of,
    summarise,
)
from sinkscope.statistics.analysis import PromptTable
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
    for name in ("movement.moves_per_head", "concentration.sinks_per_head", "norms.value_norm_auc"):
        (one,) = analysis.find(name, excess=3.0, unit="queries")
        place = (("excess", 3.0), ("unit", "queries"))
        each = [values_of(summarise(trace, FEW))[name, place] for trace in random_traces(6)]
        assert one.value == pytest.approx(np.mean(each))
        assert min(each) <= one.low <= one.value <= one.high <= max(each)
        assert one.prompts == 6


def test_a_threshold_that_stands_twice_counts_once(analysis):
    twice = analyse(random_traces(6), [*FEW, Threshold(3)], training={NEWLINE: 3, 7: 9, 8: 1, 5: 2})
    assert [(one.name, one.place, one.prompts) for one in twice.statistics] == [
        (one.name, one.place, one.prompts) for one in analysis.statistics
    ]
    assert [one.value for one in twice.statistics] == pytest.approx(
        [one.value for one in analysis.statistics], nan_ok=True
    )


def test_everything_is_told_at_every_point(analysis):
    points = {(one.place.get("excess"), one.place.get("unit")) for one in analysis.find("movement.drift")}
    assert points == {(3.0, "queries"), (5.0, "percent")}
    assert len(THRESHOLDS) == 10
    assert {one.place["layer"] for one in analysis.find("movement.drift_in", excess=3.0)} == {0, 1}
    tokens = analysis.find("composition.token", excess=3.0)
    assert sum(one.value for one in tokens) == pytest.approx(1)
    assert {one.place["text"] for one in tokens} <= set("\n . 7".split(" ")) | {
        "<|mask|>",
        " ",
        " the",
        "apple",
        "\n",
        ".",
        "7",
    }


def test_an_analysis_is_json_without_nan(analysis):
    document = json.loads(json.dumps(analysis.as_dict(), allow_nan=False))
    assert document["prompts"] == 6
    assert (document["layers"], document["heads"], document["level"]) == (2, 3, 0.95)
    assert {row["name"] for row in document["statistics"]} == set(document["definitions"])
    row = next(row for row in document["statistics"] if row["name"] == "triggers.over_chance")
    assert set(row) == {"name", "at", "value", "low", "high", "prompts", "p"}
    assert 0 < row["p"] <= 1
    assert document["definitions"]["movement.drift"]["unit"] == "positions per step"
    columns = random_columns(0)
    without = make_trace(
        columns, **{name: one for name, one in extras(columns).items() if name != "column_sums_prompt"}
    )
    document = json.loads(json.dumps(analyse([without], FEW).as_dict(), allow_nan=False))
    missing = [row for row in document["statistics"] if row["name"] == "groups.split_from_prompt"]
    assert missing and all(row["value"] is None for row in missing)


def test_one_prompt_has_values_and_no_interval():
    found = analyse(random_traces(1), [Threshold(3.0)])
    (drift,) = found.find("movement.drift")
    assert drift.value is not None
    assert (drift.low, drift.high, drift.prompts) == (None, None, 1)
    assert found.find("agreement.prompts_place")[0].value is None


def test_a_causal_trace_has_no_triggers_groups_or_choices():
    columns = sink_at(np.repeat([3, 9], 6), strength=20)
    trace = make_trace(columns)
    trace.causal, trace.last_query = True, columns / 30
    found = analyse([trace], [Threshold(3.0)])
    names = {one.name for one in found.statistics}
    assert not [name for name in names if name.startswith(("triggers", "choice"))]
    assert found.find("groups.split")[0].value is None
    assert found.find("movement.moves_per_head")[0].value is not None


def test_what_does_not_go_together_is_refused():
    with pytest.raises(CallError, match="expected at least one trace, found none"):
        analyse([])
    mixed = [*random_traces(1), *random_traces(1, heads=4)]
    with pytest.raises(
        CallError, match=r"expected traces of one model, 2 layers × 3 heads as in the first; found 2 × 4"
    ):
        analyse(mixed, FEW)
    two = list(random_traces(2))
    two[1].manifest["hidden"] = [{"rule": "top:1"}]
    with pytest.raises(
        CallError, match="expected keys hidden in all traces or in none, found False and True; analyse each kind by"
    ):
        analyse(two, FEW)
    two[0].manifest["hidden"], two[1].manifest["hidden"] = [{"rule": "random:1@seed=1"}], [{"rule": "random:1@seed=2"}]
    assert analyse(two, FEW, choice=False).prompts == 2  # two seeds of a rule
    two[1].manifest["hidden"] = [{"rule": "top:1"}]
    with pytest.raises(
        CallError, match="expected one rule of hiding, found random:1 and top:1; analyse each kind by itself"
    ):
        analyse(two, FEW)
    del two[0].manifest["hidden"], two[1].manifest["hidden"]
    for sampler, message in (
        ({"cache": "block"}, "expected one cache, found none and block"),
        ({"guidance": 2.0}, "expected guidance in all traces or in none, found False and True"),
    ):
        two[1].manifest["sampler"] = sampler
        with pytest.raises(CallError, match=message):
            analyse(two, FEW)
    del two[1].manifest["sampler"]
    two[0].manifest["dtype"], two[1].manifest["dtype"] = "float32", "bfloat16"
    with pytest.raises(CallError, match="expected one dtype, found float32 and bfloat16; analyse each kind by itself"):
        analyse(two, FEW)
    del two[1].manifest["dtype"]
    two[0].manifest["stack"] = two[0].manifest["attends_to"] = "model"
    assert analyse(two, FEW, choice=False).prompts == 2  # the second does not say
    del two[0].manifest["stack"], two[0].manifest["attends_to"]
    for one, name in zip(two, ("first", "second"), strict=True):
        one.manifest["model"] = {"name": name, "weight_hash": f"{name}-of-these-weights"}
    with pytest.raises(
        CallError,
        match=r"expected traces of one model, found first \(weights first-of-the…\) and second \(weights second",
    ):
        analyse(two, FEW)


def test_an_unknown_statistic_is_refused_with_those_there_are(analysis):
    with pytest.raises(CallError, match=r"no statistic 'movement.speed'; there are movement.steps_with_sink, "):
        analysis.find("movement.speed")
    with pytest.raises(
        CallError, match=r"two analyses with a threshold in common, found 3 queries and 4 queries; analyse one"
    ):
        compare(*(analyse(random_traces(1), [Threshold(excess)], choice=False) for excess in (3.0, 4.0)))
    with pytest.raises(CallError, match=r"excess: expected one at which movement.drift is given, .*, found 3.00001"):
        analysis.find("movement.drift", excess=3.00001)


@pytest.mark.parametrize("name", ["movement.moves_in_over_steps", "movement.moves_in_in", "movement.speed"])
def test_a_name_that_no_statistic_has_means_nothing(name):
    assert definition_of("movement.moves_in") == definition_of("movement.moves")
    with pytest.raises(CallError, match="name: expected one that `sinkscope analyse --definitions` prints, found"):
        definition_of(name)


def test_analyses_with_other_training_corpora_are_not_compared():
    first, same, other, none = (
        analyse(random_traces(1), FEW[:1], choice=False, training=one) for one in ({7: 1}, {7: 1}, {7: 2}, None)
    )
    with pytest.raises(CallError, match="expected two analyses of one tolerance and with the same training="):
        compare(first, other)
    assert compare(first, same)
    assert "composition.frequency_correlation" not in {one.name for one in compare(first, none)}


def moving(speed, seed):
    rng = np.random.default_rng(seed)
    position = np.clip(15 + speed * (np.arange(12) - 6) + rng.integers(-2, 3, 12), 0, 29).astype(int)
    return make_trace(sink_at(position), seed=seed)


def test_two_sets_are_compared_paired_where_the_prompts_are_the_same():
    first, second = (
        analyse((moving(speed, seed) for seed in range(8)), [Threshold(3.0)], choice=False) for speed in (1, -1)
    )
    (drift,) = [one for one in compare(first, second) if one.name == "movement.drift"]
    assert drift.value == pytest.approx(-2, abs=0.3)
    assert drift.high < -1.5
    others = analyse((moving(-1, seed) for seed in range(20, 30)), [Threshold(3.0)], choice=False)
    (apart,) = [one for one in compare(first, others) if one.name == "movement.drift"]
    assert apart.value == pytest.approx(-2, abs=0.4)
    assert apart.low < apart.value < apart.high < -1
    assert all(one.value in (0, None) for one in compare(first, first))


def test_the_page_of_statistics_names_each_family():
    page = Path(sinkscope.__file__).parents[2] / "docs" / "statistics.md"
    if not page.exists():
        pytest.skip("docs/ is not part of an installed package")
    named = re.findall(r"^\| `([a-z_]+)` \|", page.read_text(), flags=re.MULTILINE)
    shipped = [
        name.partition(".")[0] for one in all_statistics() if one.order < Statistic.order for name in one.definitions
    ]
    assert (
        set(shipped) <= set(named) <= {name.partition(".")[0] for name in all_definitions()}
    )  # one of no order was added


def test_the_command_prints_every_definition(capsys):
    Analyse(traces=(), definitions=True).run()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for name, one in all_definitions().items():
        assert lines[lines.index(name) + 1].startswith(f"{one.text} ({one.unit})"), name
    Analyse(traces=(), definitions=True, json=True).run()
    document = json.loads(capsys.readouterr().out)
    assert document["definitions"].keys() == all_definitions().keys()


def test_a_table_keeps_rows_apart_and_knows_what_a_prompt_lacks():
    table = PromptTable()
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
