"""Calls from Python that would give wrong numbers: a trace given twice, networks of NaN, probes of other networks."""

import os
import shutil

import numpy as np
import pytest
import torch
from hostile import specimens, trial

import sinkscope
from sinkscope import figures, sinks, statistics, traces
from sinkscope.emergence import TrainingWatch, hold_out, measure
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


COLUMNS = np.random.default_rng(0).random((3, 2, 2, 5))


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
