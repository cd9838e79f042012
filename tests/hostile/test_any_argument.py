"""Every argument of every public call against values that no one expects: it is taken, or refused in our words."""

import datetime
import inspect
import os
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hostile import specimens
from hostile.trial import FOREIGN

import sinkscope
from sinkscope import (
    decoding,
    emergence,
    evaluation,
    figures,
    interventions,
    models,
    roles,
    sinks,
    statistics,
    traces,
)
from sinkscope.errors import SinkscopeError

FULL = os.environ.get("HOSTILE") == "full"
PART = 6
"""Of so many values, `make test` tries one with each argument."""
LONGEST = 1000
"""Characters of a message."""


class Unwritable:
    """An object that Python cannot write."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def values() -> dict[str, Any]:
    """Return the values by a name of each."""
    plain = [
        None,
        True,
        0,
        -1,
        1,
        5,
        10**30,
        1.5,
        -0.5,
        float("nan"),
        float("inf"),
        1e308,
        1j,
        Decimal(1),
        Fraction(1, 2),
        ...,
        print,
    ]
    texts = ["", " ", "x", "a\0b", "\ud800", "y" * 10**5, "../..", b"x", bytearray(b"x"), memoryview(b"ab")]
    lists = [
        [],
        (),
        {},
        set(),
        [None],
        ["x"],
        [5],
        [[5]],
        [1.5],
        [-1],
        [10**30],
        (0, 1),
        {"a": 1},
        {0: 1},
        range(3),
        {1: 2}.keys(),
    ]
    arrays = [
        np.array(3),
        np.zeros(0),
        np.arange(3),
        np.array([0.5, np.nan]),
        np.array(["a"]),
        np.array([True]),
        np.ones((2, 1, 2, 3)),
    ]
    arrays += [np.array([1j]), np.array([object()], dtype=object), np.int64(2), np.float32(0.5), np.bool_(True)]
    tensors = [torch.tensor(3), torch.zeros(0), torch.arange(3), torch.tensor([True]), torch.zeros(3, device="meta")]
    with warnings.catch_warnings(action="ignore"):  # torch's, that they may change
        tensors += [torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.arange(2)]), slice(1)]
    others = [
        object(),
        Unwritable(),
        datetime.date(2020, 1, 1),
        ValueError("x"),
        os,
        Path("nosuch"),
        torch.float32,
        torch.device("cpu"),
    ]
    found = [*plain, *texts, *lists, *arrays, *tensors, *others]
    return {f"{number} {type(one).__name__}": one for number, one in enumerate(found)}


class Calls:
    """Public calls with arguments that are good.

    Attributes:
        table: {name: (call, {argument: a good value, or a function that makes one for each call})}.
    """

    def __init__(self, whole: Path, out: Callable[[], Path]) -> None:
        self.table: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
        self.model = sinkscope.load(whole / "model")
        self.trace = sinkscope.open_trace(whole / "trace")
        self._whole, self._out = whole, out
        self._read()
        self._written()
        self._rules_and_settings()
        self._of_columns()
        self._in_force()

    def add(self, function: Callable[..., Any], name: str = "", /, **given: Any) -> None:
        """Add a call; arguments that are not given have their defaults."""
        for one in inspect.signature(function).parameters.values():
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.default is not one.empty:
                given.setdefault(one.name, one.default)
        self.table[name or f"{function.__module__.split('.')[1]}.{function.__qualname__}"] = function, given

    def _read(self) -> None:
        whole, trace = self._whole, self.trace
        for opening in (sinkscope.open_trace, sinkscope.open_traces):
            self.add(opening, path=whole / "trace")
        self.add(sinkscope.Trace, folder=whole / "trace")
        self.add(traces.open_bundle, folder=whole / "bundle")
        self.add(traces.read_statistics, folder=whole / "statistics")
        self.add(figures.open_statistics, folder=whole / "statistics")
        self.add(emergence.open_emergence, folder=whole / "watch")
        self.add(roles.read_roles, path=whole / "roles.json")
        self.add(lambda folder: evaluation.read_results(folder), "read_results", folder=whole / "results")
        self.add(sinkscope.load, name=whole / "model")
        self.add(sinkscope.find_sinks, trace=trace, excess=0.5)
        self.add(sinkscope.track, sinks=sinkscope.find_sinks(trace, 0.5))
        self.add(sinkscope.analyse, traces=[trace])
        self.add(statistics.summarise, trace=trace)
        self.add(figures.page_numbers, trace=trace, excess=0.5)
        given = {"trace": trace, "excess": 1.0, "roles": None}
        self.add(lambda trace, excess, roles: sinkscope.explore(trace, excess=excess, roles=roles), "explore", **given)
        for name in ("incoming", "sink_positions", "sink_strengths"):
            self.add(getattr(figures, name), trace=trace, excess=0.5)
        self.add(figures.token_column, trace=trace, layer=0, head=0, position=0)
        self.add(figures.attention_map, trace=trace, step=0, layer=0, head=0, attention=np.ones((31, 31)) / 31)
        self.add(trace.token_text, token=5)
        opened = emergence.open_emergence(whole / "watch")
        self.add(opened.born)
        self.add(opened.stacked, name="share")
        found = roles.read_roles(whole / "roles.json")
        self.add(found.of_head, layer=0, head=0)
        self.add(found.count, role="idle")

    def _written(self) -> None:
        model, out, trace, whole = self.model, self._out, self.trace, self._whole
        results = evaluation.read_results(whole / "results")
        self.add(evaluation.table, results=results)
        self.add(evaluation.write_table, results=results)
        self.add(traces.write_bundle, trace=trace, out=out)
        self.add(traces.export_trace, trace=trace, target="numpy", out=out)
        self.add(figures.draw_figures, traces=[trace], out=out, only=["1"], excess=0.5)
        drawn = {"name": "1", "trace": trace, "layer": 0, "head": 0, "roles": None}
        self.add(lambda name, trace, **given: figures.draw_figure(name, trace, **given), "draw_figure", **drawn)
        self.add(figures.write_page, traces=[trace], out=lambda: out().with_suffix(".html"), excess=0.5)
        self.add(figures.Table, title="a", columns=["a"], rows=[[1]])
        canvases = emergence.hold_out([np.arange(5, 25)] * 2, mask_id=model.card.mask_id)
        self.add(emergence.hold_out, tokens=[np.arange(5, 25)] * 2, mask_id=model.card.mask_id)
        self.add(emergence.measure, model=model, canvases=canvases)
        self.add(emergence.TrainingWatch, network=model.network, canvases=canvases, out=out, updates=[1])
        prompts = [f"{specimens.PROMPT}{' 1' * number}" for number in range(10)]
        cheap = {"model": model, "prompts": prompts, **specimens.ROLES}
        asked = {"rules": None, "canvases": 1, "rows": 8, "out": None, "on_prompt": None}
        self.add(lambda **given: roles.find_roles(**{**cheap, **given}), "find_roles", **asked)
        request = {
            "model": model,
            "tasks": ["lab-arith"],
            "limit": 1,
            "shots": 0,
            "settings": specimens.SHORT,
            "progress": False,
        }
        self.add(evaluation.evaluate, out=out, **request)
        self.add(evaluation.run_program, source="x = 1", timeout_s=2.0)

    def _rules_and_settings(self) -> None:
        for name in interventions.__all__:
            one = getattr(interventions, name)
            if inspect.isclass(one) and issubclass(one, interventions.Intervention) and not inspect.isabstract(one):
                needed = [at for at, given in inspect.signature(one).parameters.items() if given.default is given.empty]
                self.add(one, f"interventions.{name}", **{at: {0} if at == "positions" else 1 for at in needed})
        self.add(interventions.parse_rule, text="top:1")
        self.add(interventions.split_rules, text="top:1,none")
        self.add(interventions.drop_past, count=1)
        self.add(lambda rule: interventions.compose(rule), "compose", rule=interventions.HideTopSinks(1))
        for name in decoding.__all__:
            one = getattr(decoding, name)
            if inspect.isclass(one) and name != "Settings" and (name.endswith("Settings") or name == "BlockCache"):
                self.add(one, f"decoding.{name}")
        self.add(decoding.parse_cache, text="none")
        self.add(decoding.step_count, settings=decoding.LLaDASettings())
        self.add(decoding.find_sampler, name="llada")
        self.add(decoding.settings_of, sampler="llada")
        self.add(decoding.resolve_settings, family=models.FAMILIES["llada"])
        self.add(sinkscope.SinkToken, "SinkToken")
        self.add(models.bundled_folder, name="lab-diffusion")
        self.add(models.is_bundled, name="lab-diffusion")
        self.add(models.describe, name="lab-diffusion")
        self.add(models.identify, name="lab-diffusion")
        self.add(models.SpecialTokens, "SpecialTokens")
        self.add(roles.Rules, "Rules")
        self.add(roles.Estimate, "Estimate", mean=0.1, low=0.0, high=0.2)
        self.add(roles.cost_of_roles, family=models.FAMILIES["llada"], layers=1, heads_in_layer=2, prompts=10)
        self.add(statistics.Threshold, "Threshold", excess=1.0)

    def _of_columns(self) -> None:
        columns = np.random.default_rng(0).random((4, 1, 2, 6))
        columns *= 6 / columns.sum(-1, keepdims=True)
        selected = sinks.is_sink(columns, 0.5)
        good = {
            "columns": columns,
            "selected": selected,
            "k": 1,
            "unit": "queries",
            "causal": False,
            "last_query": columns,
            "window": 2,
        }
        good["main"] = sinks.main_sinks(columns, selected)
        for name in sinks.__all__:
            one = getattr(sinks, name)
            needed = inspect.signature(one).parameters.values() if inspect.isfunction(one) else ()
            if needed and all(at.name in good or at.default is not at.empty for at in needed):
                self.add(one, f"sinks.{name}", **{at.name: good[at.name] for at in needed if at.name in good})

    def _in_force(self) -> None:
        model, out, mask = self.model, self._out, self.model.card.mask_id

        def write(**given: Any) -> Any:
            return sinkscope.generate(**{"model": model, "prompt": specimens.PROMPT, **specimens.SHORT, **given})

        def recorded(model: Any, **given: Any) -> None:
            folder = given["out"]
            with sinkscope.recording(model, **given):
                write()
            for one in sinkscope.open_traces(folder) if given["keep"] in ("columns", "top") else ():
                one.verify()

        def followed(canvas: Any, ids: Any, **given: Any) -> None:
            folder = out()
            with torch.no_grad(), sinkscope.recording(model, out=folder), sinkscope.following(model, **given) as steps:
                model.network(ids)
                steps.committed(canvas)
            sinkscope.open_trace(folder).verify()

        class Chooses(interventions.Intervention):
            def choose(self, context: Any) -> Any:
                return answers[0]

        answers: list[Any] = [None]

        def answered(kind: Any) -> Callable[[Any], None]:
            def run(answer: Any) -> None:
                answers[0] = answer
                with kind():
                    write()

            return run

        settings = {**specimens.SHORT, "temperature": 0.0, "seed": 0, "cache": "none"}
        self.add(write, "generate", **settings, prompt=specimens.PROMPT, on_step=None, model=model)
        self.add(
            lambda messages: sinkscope.generate(model, messages=messages, **specimens.SHORT), "messages", messages=[]
        )
        self.add(sinkscope.log_likelihood, model=model, context="Q:", continuation=" Tom", samples=2)
        self.add(model.decode, ids=[5])
        self.add(model.answer_text, answer=[5])
        self.add(model.chat, messages=[])
        self.add(
            recorded,
            "recording",
            model=model,
            out=out,
            keep="columns",
            top=8,
            numbered=False,
            tokenizer=None,
            overwrite=False,
        )
        given = {"canvas": torch.tensor([[5, 6, 7, mask]]), "ids": torch.tensor([[5, 6, mask, mask]]), "mask_id": mask}
        self.add(followed, "following", **given, pad_id=None, sampler="foreign")
        self.add(answered(lambda: Chooses()(model)), "what a rule answers", answer=None)
        classified = interventions.SameClassKeys(1, classify=lambda *_: answers[0])
        self.add(answered(lambda: classified(model)), "what a classifier answers", answer="x")
        for name in ("column_sums", "tokens"):
            self.table[f"an index of {name}"] = getattr(self.trace, name).__getitem__, {"index": 0}


@pytest.fixture(autouse=True)
def as_users_have_it():
    """Types are checked by the test suite alone: here they are what a user's arguments are."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def calls(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    numbers = iter(range(10**9))
    return Calls(whole, lambda: folder / str(next(numbers)))


NAMES = 120
"""More than there are calls; those beyond are empty."""
TAKEN = (SinkscopeError, IndexError)
"""An index out of range is an IndexError of ours: iteration needs it."""


@pytest.mark.parametrize("number", range(NAMES))
def test_any_argument(calls, number, tmp_path, monkeypatch):
    if number >= len(calls.table):
        return
    monkeypatch.chdir(tmp_path)
    name = sorted(calls.table)[number]
    call, given = calls.table[name]
    wrong = []
    for place, argument in enumerate(given):
        for at, (title, value) in enumerate(values().items()):
            if not FULL and (at + place + number) % PART:
                continue
            made = {one: good() if one == "out" and callable(good) else good for one, good in given.items()}
            try:
                with warnings.catch_warnings(action="ignore"):
                    call(**{**made, argument: value})
            except TAKEN as error:
                message = str(error)
                if len(message) > LONGEST or (FOREIGN.search(message) and not isinstance(value, ValueError)):
                    wrong.append(f"{argument}={title}: {message[:200]}")
            except Exception as error:
                wrong.append(f"{argument}={title}: {type(error).__name__}: {str(error)[:200]}")
    assert not wrong, f"{name}: {len(wrong)} answers in other words:\n" + "\n".join(wrong[:20])


def test_every_call_is_tried(calls):
    assert 80 < len(calls.table) <= NAMES
