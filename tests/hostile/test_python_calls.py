"""Calls from Python that would give wrong numbers: a trace given twice, networks of NaN, probes of other networks."""

import os
import shutil

import numpy as np
import pytest
import torch
from hostile import specimens, trial

import sinkscope
from sinkscope import decoding, evaluation, figures, interventions, models, sinks, statistics, traces
from sinkscope.decoding import resolve_settings
from sinkscope.emergence import TrainingWatch, hold_out, measure, open_emergence
from sinkscope.errors import SinkscopeError
from sinkscope.evaluation import evaluate
from sinkscope.figures.explorer import explore
from sinkscope.roles import Probe, find_roles_on

SHORT = specimens.SHORT
TEXTS = [f"{number} {specimens.PROMPT}" for number in range(10)]


@pytest.fixture(scope="module")
def model(whole):
    return sinkscope.load(whole / "model")


@pytest.fixture(scope="module")
def trace(whole):
    return sinkscope.open_trace(whole / "trace")


@pytest.fixture(scope="module")
def canvases(model):
    return hold_out([range(5, 25)] * 2, mask_id=model.card.mask_id)


def refused(call, *more):
    """Return the message of a call that must be refused in our words."""
    with pytest.raises((SinkscopeError, *more)) as error:
        call()
    message = str(error.value)
    assert not isinstance(error.value, SinkscopeError) or not trial.FOREIGN.search(message), message
    return message


def test_roles_into_a_folder_of_something_else(whole, model, tmp_path):
    for out in (whole / "trace", whole / "roles.json", str(whole / "watch")):
        refused(lambda out=out: sinkscope.find_roles(model, TEXTS, out=out, **specimens.ROLES))
    assert sinkscope.find_roles(model, TEXTS, out=str(tmp_path / "out"), **specimens.ROLES)
    other = [[5] * 600 + [number] for number in range(6, 16)]
    with pytest.raises(SinkscopeError, match="holds the roles of another run"):
        sinkscope.find_roles(model, [torch.tensor(one) for one in other], out=tmp_path / "out", **specimens.ROLES)


@pytest.mark.parametrize(
    "make", [np.array, torch.tensor, lambda rows: list(map(torch.tensor, rows))], ids=["array", "tensor", "tensors"]
)
def test_canvases_may_be_arrays_or_tensors(make):
    rows = [list(range(5, 25)), list(range(6, 26))]
    free = [[number % 3 > 0 for number in row] for row in rows]
    expected, found = (
        hold_out(rows, [np.array(one) for one in free], mask_id=1),
        hold_out(make(rows), make(free), mask_id=1),
    )
    for one, other in zip(expected, found, strict=True):
        assert (one.probe.tokens == other.probe.tokens).all() and (one.targets == other.targets).all()
        assert other.probe.tokens.dtype == np.int64


def test_a_network_of_nan_is_not_measured(whole, canvases, tmp_path):
    network = sinkscope.load(whole / "model").network
    with torch.no_grad():
        network.lm_head.weight.fill_(float("nan"))
    watch = TrainingWatch(network, canvases, tmp_path / "out", every=1)
    assert "expected finite log-probabilities, found NaN or infinite ones" in refused(lambda: watch(1))
    assert os.listdir(tmp_path) == []


def test_a_path_may_be_a_text(trace, tmp_path):
    folder = tmp_path / "new"
    assert figures.make_folder(str(folder)) == folder
    drawn = figures.draw_figures([trace], str(folder), only=["1"])
    assert drawn and figures.write_page([trace], str(folder), figures=[*map(str, drawn)]) == folder / "report.html"
    assert not traces.is_statistics(str(folder))
    traces.claim_folder(str(tmp_path / "claimed"))
    shutil.copytree(trace.folder, tmp_path / "copy")
    traces.move_trace(str(tmp_path / "copy"), str(tmp_path / "moved"))
    assert sinkscope.open_trace(tmp_path / "moved").steps == trace.steps


KINDS = {
    "prompts as text": lambda model: sinkscope.find_roles(model, "abcdefghijkl", **specimens.ROLES),
    "prompts by name": lambda model: sinkscope.find_roles(
        model, {number: "a" for number in range(12)}, **specimens.ROLES
    ),
    "prompts one by one": lambda model: sinkscope.find_roles(model, (one for one in TEXTS), **specimens.ROLES),
    "no prompts": lambda model: sinkscope.find_roles(model, None, **specimens.ROLES),
    "canvases": lambda model: sinkscope.find_roles(model, TEXTS, **{**specimens.ROLES, "canvases": 1.5}),
    "so many canvases": lambda model: sinkscope.find_roles(model, TEXTS, **{**specimens.ROLES, "canvases": 10**30}),
    "rows": lambda model: sinkscope.find_roles(model, TEXTS, rows="x", **specimens.ROLES),
    "control_seed": lambda model: sinkscope.find_roles(model, TEXTS, control_seed="x", **specimens.ROLES),
    "rules": lambda model: sinkscope.find_roles(model, TEXTS, rules="x", **specimens.ROLES),
    "no folder": lambda model: sinkscope.find_roles(model, TEXTS, out="", **specimens.ROLES),
    "a rule that is None": lambda model: sinkscope.parse_rule(None),
    "a rule that is a number": lambda model: sinkscope.parse_rule(5),
    "a rule of bytes": lambda model: sinkscope.parse_rule(b"top:1"),
    "steps that run backwards": lambda model: sinkscope.parse_rule("top:1@steps=5-3"),
    "a model instead of its name": lambda model: sinkscope.load(model),
    "a rule in which two words are of one option": lambda model: sinkscope.parse_rule("top:1@current,previous"),
}
for _name, _values in {
    "limit": [0, 1.5, "x"],
    "shots": [-1, 1.5, "x", 10**9],
    "batch": [0, 1.5, None],
    "settings": [5, "x", [1]],
    "tasks": [5, None, [5], np.zeros(3), torch.zeros(2), []],
    "hide": [5, "top:1", [5], np.zeros(3), []],
    "data": [5, {"gsm8k": 5}],
    "protocol": [5, None],
    "out": ["", 5, None, "\ud800", "a\0b"],
}.items():
    for _value in _values:
        KINDS[f"evaluate {_name}={_value}"] = lambda model, name=_name, value=_value: evaluate(
            model, **{"tasks": ["lab-arith"], "out": "/nowhere/x", name: value}
        )


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_of_another_type(model, kind):
    refused(lambda: KINDS[kind](model))


@pytest.mark.parametrize("excess", ["x", None, [3], True])
def test_an_excess_that_is_no_number(trace, excess):
    refused(lambda: sinkscope.find_sinks(trace, excess=excess))
    refused(lambda: explore(trace, excess=excess))


def test_a_page_in_no_folder(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: explore(5))
    for path in ("", 5, None):
        refused(lambda path=path: explore(trace).write_page(path))
        refused(lambda path=path: explore(trace).write_folder(path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "value", [None, 5, object(), np.zeros(3), torch.zeros(2), [5], ["x", None]], ids=lambda value: type(value).__name__
)
def test_an_object_that_is_no_trace(trace, value):
    refused(lambda: sinkscope.find_sinks(value))
    refused(lambda: sinkscope.analyse(value))
    refused(lambda: explore(value))
    refused(lambda: sinkscope.analyse(trace, thresholds=value))


def test_arrays_in_the_place_of_words(model, trace):
    for value in (np.zeros(3), torch.zeros(2)):
        refused(lambda value=value: sinkscope.find_sinks(trace, unit=value))
        refused(lambda value=value: sinkscope.HideTopSinks(1, observe=value))
        refused(lambda value=value: sinkscope.HideTopSinks(1, heads=value))
        refused(lambda value=value: sinkscope.load("lab-diffusion", dtype=value))
        refused(lambda value=value: sinkscope.load("lab-diffusion", device_map=value))
        refused(lambda value=value: sinkscope.log_likelihood(model, "Q:", " Tom", method=value))
    refused(lambda: sinkscope.find_sinks(trace, excess=10**30))


@pytest.mark.parametrize("name", ["samples", "batch"])
def test_more_canvases_than_memory_holds(model, name):
    refused(lambda: sinkscope.log_likelihood(model, "Q:", " Tom", **{name: 10**9}))


ODD = (None, 5, "x", b"x", [5], {"x": 1}, object(), np.zeros(3), torch.zeros(2))
FUNCTIONS = {
    "attention_map": lambda trace, one: figures.attention_map(trace, one, 0, 0, np.ones((4, 4))),
    "the array of attention_map": lambda trace, one: figures.attention_map(trace, 0, 0, 0, one),
    "token_column": lambda trace, one: figures.token_column(trace, 0, 0, one),
    "the layer of incoming": lambda trace, one: figures.incoming(trace, one, one),
    "page_numbers": lambda trace, one: figures.page_numbers(one),
    "open_statistics": lambda trace, one: figures.open_statistics(one),
    "read_roles": lambda trace, one: read_roles(one),
    "read_statistics": lambda trace, one: read_statistics(one),
    "resolve_settings": lambda trace, one: resolve_settings(one),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_odd_argument_of_a_smaller_function(trace, name):
    for one in ODD:
        if (name == "the layer of incoming" and one is None) or (
            name in ("attention_map", "token_column") and isinstance(one, int)
        ):
            continue
        refused(lambda one=one: FUNCTIONS[name](trace, one))


@pytest.mark.parametrize("name", ["share", "progress", "batch"])
def test_evaluations_that_are_refused_leave_nothing(model, tmp_path, name):
    for one in (*ODD[2:], 10**30):
        refused(lambda one=one: evaluate(model, tasks=["lab-arith"], out=tmp_path / "out", limit=1, **{name: one}))
    assert os.listdir(tmp_path) == []


PACKAGES = "decoding traces sinks statistics interventions figures roles emergence evaluation models".split()
TAKES_ANYTHING = {
    "known_caches",
    "known_rules",
    "known_controls",
    "all_statistics",
    "all_definitions",
    "find_figures",
}  # no arguments
CHECKS_ITSELF = {
    "load",
    "run_program",
    "evaluate",
    "read_results",
    "compose",
    "block_length",
    "expect_model",
    "explore",
    "described",
}


def public_functions():
    """Return every public function by its name, the top level's included."""
    found = {}
    for package in [sinkscope, *(importlib.import_module(f"sinkscope.{name}") for name in PACKAGES)]:
        for name in package.__all__:
            if inspect.isfunction(one := getattr(package, name)):
                found[name] = one
    return found


def test_every_public_function_checks_its_arguments():
    unchecked = {name for name, one in public_functions().items() if not hasattr(one, "__wrapped__")}
    assert unchecked <= TAKES_ANYTHING | CHECKS_ITSELF


MADE = (
    "Rules Threshold PromptSettings Definition Score Task Table Probe HeldOut BlockCache LLaDASettings MMaDASettings "
    "DreamSettings SDARSettings LLaDA2Settings AutoregressiveSettings Trace TraceWriter PromptFeed Summary TrainingWatch"
).split()
"""Classes that a user makes objects of, or that are made of what a user gives."""
ASKED = {
    "TraceWriter": "add",
    "Effect": "of sentence",
    "Roles": "of_head count from_dict",
    "Analysis": "find",
    "PromptFeed": "feed finish",
    "PromptSummary": "number counts shares has_sink strength sinks sinks_by_token main_at is_sink_at heads_with_sink",
    "Summary": "thresholds feed of merge from_arrays",
    "Subject": "head_name map head_columns mean_columns_of",
    "DrawnFigure": "save",
    "Emergence": "stacked born",
    "TrainingWatch": "__call__",
}
"""Methods by which a user asks objects that were returned."""


def test_what_a_user_makes_and_asks_checks_its_arguments():
    classes = {}
    for package in PACKAGES:
        module = importlib.import_module(f"sinkscope.{package}")
        classes |= {name: getattr(module, name) for name in module.__all__ if inspect.isclass(getattr(module, name))}
    unchecked = [name for name in MADE if not hasattr(classes[name].__init__, "__wrapped__")]
    for name, methods in ASKED.items():
        unchecked += [
            f"{name}.{one}" for one in methods.split() if not hasattr(getattr(classes[name], one), "__wrapped__")
        ]
    assert unchecked == []


COLUMNS = np.random.default_rng(0).random((3, 2, 2, 5))
SMALL = {
    "columns of text": lambda: sinks.is_sink(np.array(["a"])),
    "columns of two axes": lambda: sinks.main_sinks(COLUMNS[0, 0], COLUMNS[0, 0] > 0.5),
    "no columns": lambda: sinks.excess_of(None),
    "ragged columns": lambda: sinks.excess_of([[[[1.0], [1.0, 2.0]]]]),
    "a window of nothing": lambda: sinks.last_query_window(COLUMNS, 0),
    "a seed below 0": lambda: sinks.movement_test(np.zeros((3, 1, 1), int), seed=-1),
    "an unknown statistic": lambda: statistics.definition_of("nosuch"),
    "a summary of no heads": lambda: statistics.Summary(-1, 2),
    "a summary of nothing": lambda: statistics.summarise(None),
    "a sampler by a path": lambda: decoding.find_sampler("../x"),
    "a sampler that is a number": lambda: decoding.settings_of(5),
    "settings of text": lambda: decoding.LLaDASettings(length="x"),
    "a cache of text": lambda: decoding.BlockCache(every="x"),
    "a family of text": lambda: cost_of_roles("llada", 1, 1, 10),
    "rows below 1": lambda: cost_of_roles(FAMILIES["llada"], 1, 1, 10, rows=0, **SHORT),
    "so many dropped": lambda: interventions.drop_past(10**30),
    "a layer without axes": lambda: sinkscope.HideTopSinks(1, layers=np.array(2)),
    "positions without axes": lambda: interventions.HidePositions(np.array(2)),
    "a table of another form": lambda: evaluation.write_table([], "nosuch"),
    "a fraction": lambda: sinks.is_sink(COLUMNS, Fraction(1, 2)),
    "thresholds without any": lambda: statistics.feed_of(statistics.PromptSettings(), np.array([])),
    "a sink of arrays": lambda: sinkscope.SinkToken(kind=np.zeros(3)),
    "a model by an array": lambda: sinkscope.load(np.zeros((2, 2))),
    "a device map by an array": lambda: sinkscope.load("lab-diffusion", device_map=np.zeros((2, 2))),
    "a network by its name": lambda: add_sink_token("x", 5),
    "the blocks of a name": lambda: models.block_length("x"),
    "rules of text": lambda: Rules(changed="x"),
    "rules of nothing": lambda: Rules(small=None),
    "a share of NaN": lambda: Rules(lasting=float("nan")),
    "a share above 1": lambda: Rules(lasting=2.0),
    "an evenness below 0": lambda: Rules(even=-0.1),
    "an endless change": lambda: Rules(changed=float("inf")),
    "an excess below 0": lambda: Rules(excess=-1),
    "columns of one axis": lambda: sinks.is_sink(np.ones(3)),
    "selected of one place": lambda: sinks.main_sinks(COLUMNS, np.zeros((1, 1, 1, 1), bool)),
    "selected of more steps": lambda: sinks.main_sinks(COLUMNS, np.zeros((4, 2, 2, 5), bool)),
    "a main sink below -1": lambda: sinks.movement_test(np.full((3, 1, 1), -7)),
    "a main sink beyond the canvas": lambda: sinks.movement_test(
        np.array([9, 0, 9]).reshape(3, 1, 1), sinks.sinks_in(np.ones((3, 1, 1, 5), bool))
    ),
    "a step beyond the last": lambda: sinks.sinks_in(np.ones((2, 1, 1, 3), bool))(np.array([9]), *[np.array([0])] * 3),
    "rates at NaN": lambda: sinks.sink_rates(COLUMNS, False, float("nan")),
    "rates below 0": lambda: sinks.sink_rates(COLUMNS, True, -1),
    "rates of no head": lambda: sinks.sink_rates(COLUMNS[:, :, :0], True),
    "outliers by NaN": lambda: sinks.is_outlier(COLUMNS, float("nan")),
    "outliers below the mean": lambda: sinks.is_outlier(COLUMNS, -1.0),
    "an unknown unit": lambda: sinks.in_unit(COLUMNS, "share"),
    "a threshold of text": lambda: statistics.Threshold("x", "y"),
    "a threshold below 0": lambda: statistics.Threshold(-1),
    "a threshold in means": lambda: statistics.Threshold(0.5, "mean"),
    "a step of nothing": lambda: statistics.feed_of(statistics.PromptSettings()).feed({}),
    "a step of text": lambda: statistics.feed_of(statistics.PromptSettings()).feed("x"),
    "a step of two canvases": lambda: statistics.feed_of(statistics.PromptSettings()).feed(
        {"tokens": np.zeros(4), "column_sums": COLUMNS[0]}
    ),
    "descriptions of a number": lambda: decoding.described(5),
    "descriptions of a class": lambda: decoding.described(decoding.LLaDASettings),
    "no bundled folder": lambda: bundled_folder("nosuch"),
    "a folder outside": lambda: bundled_folder("../.."),
    "a score of text": lambda: evaluation.Score("yes", None, ""),
    "a probe of two lengths": lambda: Probe(0, 0, np.zeros(3, int), np.ones(2, bool), np.ones(2, bool)),
    "a probe that nobody reads": lambda: Probe(0, 0, np.zeros(3, int), np.zeros(3, bool), np.zeros(3, bool)),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_public_call_that_cannot_be(kind):
    assert "\n" not in refused(SMALL[kind])


def test_a_moment_of_nothing(model, canvases):
    refused(lambda: measure(model, []))
    refused(lambda: measure("x", canvases))
    refused(lambda: sinkscope.generate(model, np.array(["a"]), **SHORT))


def test_a_list_of_switches_is_no_prompt(model):
    for given in ([True, False], [5, True], [np.True_, 5]):
        assert "expected a prompt as text or as 1-D token ids, found" in refused(
            lambda given=given: sinkscope.generate(model, given, **SHORT)
        )
    for given in ("x", [True], [1.5], [-1], None, np.zeros(3), 5):
        refused(lambda given=given: model.decode(given))
    for given in ("x", [[5]], None):
        refused(lambda given=given: model.answer_text(given))
    assert model.answer_text([5, 6]) == model.answer_text(torch.tensor([5, 6])) == model.decode(np.array([5, 6]))


def test_rules_that_no_canvas_can_meet_are_refused_before_anything_is_measured(model):
    asked = []
    for most in (1e9, model.card.max_positions):
        with pytest.raises(SinkscopeError, match=r"rules\.excess: expected a number below"):
            sinkscope.find_roles(model, TEXTS, rules=Rules(excess=most), on_prompt=asked.append, **specimens.ROLES)
    assert asked == []


def test_probes_of_another_network_are_refused(model):
    for tokens in ([10**6] * 3, [-1, 5, 6], [5] * (model.card.max_positions + 1)):
        probes = [Probe(number, 0, tokens, [True] * len(tokens), [True] * len(tokens)) for number in range(10)]
        assert refused(lambda probes=probes: find_roles_on(model, probes)).startswith("probe 0: ")
    refused(lambda: measure(model, hold_out([[10**6] * 20], mask_id=2)))
    refused(lambda: find_roles_on(model, [], rows=0))


def test_a_trace_given_twice_is_refused(whole, trace):
    for given in ([trace, trace], [trace, whole / "trace"], [whole / "trace", f"{whole}/trace/../trace"]):
        assert "expected each trace once" in refused(lambda given=given: sinkscope.analyse(given, choice=False))


def test_numbers_of_numpy_and_lists_are_as_good_as_plain_ones(model, trace):
    columns = (COLUMNS * 9).round()
    assert np.array_equal(
        sinks.is_sink(columns.astype(int), 1.0, "percent"), sinks.is_sink(columns.tolist(), 1.0, "percent")
    )
    assert np.array_equal(sinks.excess_of(columns.tolist()), sinks.excess_of(columns))
    assert (
        sinkscope.SinkToken(count=np.int64(2), seed=np.int64(3)).as_config()
        == sinkscope.SinkToken(count=2, seed=3).as_config()
    )
    plain = hold_out([range(5, 25)], mask_id=2, seed=3)[0].probe.tokens
    assert np.array_equal(hold_out([range(5, 25)], mask_id=np.int64(2), seed=np.int64(3))[0].probe.tokens, plain)
    tokens = sinkscope.generate(model, [5, 6], **SHORT).tokens
    unsigned = (np.array([5, 6], np.uint16), np.array([5, 6], np.uint32), torch.tensor([5, 6], dtype=torch.uint16))
    for ids in ((5, 6), np.array([5, 6]), torch.tensor([5, 6]), *unsigned, [np.int64(5), np.int64(6)]):
        given = sinkscope.generate(model, ids, **{name: np.int64(value) for name, value in SHORT.items()})
        assert torch.equal(given.tokens, tokens)
    assert explore(trace, excess=np.float32(3)).page() == explore(trace, excess=3.0).page()
    assert type(statistics.Threshold(np.float32(3.5)).excess) is float
    assert repr(sinkscope.analyse((trace,), choice=False)) == repr(
        sinkscope.analyse(np.array([trace], object), choice=False)
    )
