"""A rule that somebody adds: asking for attention is enough, or an error; the documentation's example; a rule of
another package.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import EntryPoint
from typing import Literal

import pytest
import torch
from adding_page import files_of_the_page

import sinkscope
from sinkscope import extension_points, interventions
from sinkscope.errors import CallError
from sinkscope.interventions import HideTopSinks, Intervention, compose, known_rules, parse_rule, rules
from sinkscope.interventions.step_canvas import class_in

EXAMPLE = files_of_the_page()["src/sinkscope/interventions/bottom_keys.py"]


@dataclass(frozen=True)
class Asking(Intervention):
    """Hides the largest column of what it asks for."""

    observe: str = "previous"
    measured: str = "local"

    def choose(self, context):
        seen = context.seen(self.observe, self.measured)
        if seen is None:
            return None
        values = seen.columns.masked_fill(~context.candidates[:, None], -1)
        return torch.zeros_like(values, dtype=torch.bool).scatter(-1, values.argmax(-1, keepdim=True), True)


@dataclass(frozen=True)
class AskingBlindly(Asking):
    observing = False


@dataclass(frozen=True)
class AskingForUnhidden(Asking):
    unhidden_pass = True


def written(model, rule, question, **settings):
    with rule(model) as running:
        tokens = sinkscope.generate(model, question, **settings).tokens
    return tokens, running.effect


@pytest.mark.parametrize("observe", ["previous", "current"])
@pytest.mark.parametrize("measured", ["local", "hidden", "clean"])
def test_asking_for_attention_is_enough(model, settings, question, observe, measured):
    kind = AskingForUnhidden if measured == "clean" else Asking
    tokens, effect = written(model, kind(observe=observe, measured=measured), question, **settings)
    expected, known = written(model, HideTopSinks(1, observe=observe, measured=measured), question, **settings)
    assert effect.removed_share > 0 and torch.equal(tokens, expected)
    assert effect.removed_share == pytest.approx(known.removed_share)


def test_a_rule_for_one_step_has_seen_the_step_before_it(diffusion, settings, question):
    _, effect = written(diffusion, Asking(steps=(3,)), question, length=8, block=4)
    assert (effect.steps == 1).all() and effect.removed_share > 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            AskingBlindly(),
            r"AskingBlindly asks for local attention, which was not measured; set its observing to True",
        ),
        (AskingBlindly(observe="current"), "set its observing to True"),
        (
            Asking(measured="clean"),
            "Asking asks for clean attention, which was not measured; set its unhidden_pass to True",
        ),
        (Asking(observe="next"), "expected attention of the step previous or current, .* found 'next'"),
        (Asking(measured="hiden"), "local or hidden or clean, found 'previous' and 'hiden'"),
    ],
)
def test_asking_for_what_is_not_measured_is_an_error(model, settings, question, rule, message):
    with pytest.raises(CallError, match=message):
        written(model, rule, question, **settings)


def test_a_function_that_cannot_be_hashed_classifies_as_any(diffusion, settings, question):
    @dataclass
    class Halves:
        limit: int

        def __call__(self, token):
            return "low" if token < self.limit else "high"

    with pytest.raises(TypeError):
        hash(Halves(30))
    found = [
        interventions.SameClassKeys(2, classify=one)
        for one in (Halves(30), lambda token: "low" if token < 30 else "high")
    ]
    assert torch.equal(*(written(diffusion, rule, question, **settings)[0] for rule in found))


def test_the_example_of_the_documentation_bites(model, settings, question):
    names = {}
    exec(EXAMPLE, names)
    _, effect = written(model, names["HideBottomKeys"](2), question, **settings)
    assert effect.removed_share > 0 and effect.keys_per_head == 2
    assert effect.removed_share < written(model, HideTopSinks(2), question, **settings)[1].removed_share


@dataclass(frozen=True)
class HideClass(Intervention):
    """Hides the tokens of a class; keeps what it saw."""

    observing = False

    name: str = "word"
    classify: Callable[[int], str] | None = None
    found: list = field(default_factory=list, compare=False)

    def choose(self, context):
        self.found.append((context.of_class(self.name, self.classify), context.tokens, context.real))
        return self.found[-1][0][:, None]


@pytest.mark.parametrize("classify", [None, lambda token: "word" if token % 3 else "other"])
def test_the_keys_of_a_class_are_found_by_its_name(model, settings, question, short, classify):
    with (rule := HideClass(classify=classify))(model) as running:
        sinkscope.generate(model, [question, short], **settings)
    assert running.effect.removed_share > 0 and not rule.found[0][2].all()  # the shorter row is padded
    read = classify or (lambda token: class_in(model, token))
    for where, tokens, real in rule.found:
        expected = [
            [bool(there) and read(token) == "word" for token, there in zip(*row, strict=True)]
            for row in zip(tokens.tolist(), real, strict=True)
        ]
        assert where.tolist() == expected


def test_a_class_that_is_not_there_has_no_keys_and_an_unknown_one_is_refused(model, settings, question):
    with (rule := HideClass("absent", classify=str))(model) as running:
        sinkscope.generate(model, question, **settings)
    assert running.effect.removed_share == 0 and not any(where.any() for where, _, _ in rule.found)
    with pytest.raises(
        CallError,
        match=r"name: expected mask or newline or .* or word, found 'comma'; for other classes give classify",
    ):
        written(model, HideClass("comma"), question, **settings)


@pytest.mark.parametrize("word", [word for word, kind in known_rules().items() if kind.rule == f"{word}:K"])
def test_no_keys_are_none_of_every_rule_that_hides_k(model, settings, question, word):
    tokens, effect = written(model, parse_rule(f"{word}:0"), question, **settings)
    assert torch.equal(tokens, written(model, compose(), question, **settings)[0])
    assert effect.removed_share == 0 and effect.keys_per_head == 0


def declare(folder, name, value):
    """A folder that Python takes for an installed package with one entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sinkscope.interventions]\n{name} = {value}\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("value", ["mine", "mine:HideBottomKeys"])
def test_a_rule_of_another_package_is_hidden_by_from_the_shell(value, diffusion_folder, tmp_path):
    site = declare(tmp_path / "site", "mine", value)
    (site / "mine.py").write_text(EXAMPLE.replace("bottom:K", "mine:K"))
    arguments = [
        "trace",
        diffusion_folder,
        "--prompt",
        "a b c",
        "--length",
        "4",
        "--hide",
        "mine:1",
        "--out",
        tmp_path / "t",
        "--json",
    ]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "sinkscope", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["removed_share"] > 0
    (found,) = sinkscope.open_trace(tmp_path / "t").manifest["hidden"]
    assert "HideBottomKeys" in found["rules"][0] and found["removed_share"] > 0


def test_a_file_in_the_package_is_enough(tmp_path, monkeypatch):
    """The package's folder is a temporary one with one more module."""
    (tmp_path / "bottom_keys.py").write_text(EXAMPLE)
    monkeypatch.setattr("sinkscope.interventions.__path__", [*sinkscope.interventions.__path__, str(tmp_path)])
    fresh = known_rules.__wrapped__()
    assert fresh.keys() - known_rules() == {"bottom"} and fresh["bottom"](3).k == 3


class _Abstract(Intervention):
    def choose(self, context):
        return None


@dataclass(frozen=True)
class WithOptions(_Abstract):
    """Every kind of argument and option."""

    rule = "mine:N+SHARE"

    n: int
    share: float
    _: KW_ONLY
    seed: int = 0
    weight: float = 1.0
    way: Literal["here", "there"] = "here"
    strict: bool = False


class Double(_Abstract):
    rule = "top:K"


def test_a_word_of_two_rules_is_refused(monkeypatch):
    point = EntryPoint("mine", "test_adding_a_rule:Double", "sinkscope.interventions")
    monkeypatch.setattr(extension_points, "entry_points", lambda group: [point])
    with pytest.raises(CallError, match="Double: expected a word that no other rule has, found 'top'"):
        known_rules.__wrapped__()


def test_arguments_and_options_are_the_fields_of_the_class(monkeypatch):
    monkeypatch.setattr(rules, "known_rules", lambda: {"mine": WithOptions})
    assert parse_rule("mine:2+0.5") == WithOptions(2, 0.5)
    assert parse_rule("mine:2+.5@there,strict,seed=3,weight=1e-2,layers=1") == WithOptions(
        2, 0.5, seed=3, strict=True, weight=0.01, way="there", layers=(1,)
    )
    with pytest.raises(CallError, match=r"expected mine:N\+SHARE, found '2' behind the colon"):
        parse_rule("mine:2")
