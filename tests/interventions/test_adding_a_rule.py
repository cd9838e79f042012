"""A rule that somebody adds: asking for attention is enough, or an error; the documentation's example; a rule of another package."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import EntryPoint
from typing import Literal

import numpy as np
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
            r"AskingBlindly asks for .* the previous step \(local\): expected its observing to be True, found False",
        ),
        (AskingBlindly(observe="current"), r"the current step \(local\): expected its observing to be True"),
        (Asking(measured="clean"), r"Asking asks for .* \(clean\): expected its unhidden_pass to be True, found False"),
        (Asking(observe="next"), "observe: expected previous or current, found 'next'"),
        (Asking(measured="hiden"), "measured: expected local or hidden or clean, found 'hiden'"),
    ],
)
def test_asking_for_what_is_not_measured_is_an_error(model, settings, question, rule, message):
    with pytest.raises(CallError, match=message):
        written(model, rule, question, **settings)


@dataclass(frozen=True)
class Answering(Intervention):
    """Returns what a function of the context says."""

    answer: Callable[[object], object]

    def choose(self, context):
        return self.answer(context)


@dataclass(frozen=True)
class Promising(Asking):
    """Hides one key and says that it hides at most so many."""

    says: object = 1

    @property
    def most(self):
        return self.says


@pytest.mark.parametrize("says", [None, 1, 3])
def test_hits_are_counted_by_the_most_keys_of_a_head(diffusion, settings, question, says):
    assert written(diffusion, Promising("current", says=says), question, **settings)[1].hit_rate == 1


@pytest.mark.parametrize(
    ("says", "found"),
    [
        (0, "the largest number of keys that a head can lose, found 0, where a head lost 1; hits are counted by it"),
        ("1", "a whole number from 0 upwards or None, found '1'"),
        (-1, "a whole number from 0 upwards or None, found -1"),
    ],
)
def test_a_wrong_most_is_refused(diffusion, settings, question, says, found):
    with pytest.raises(CallError, match=f"Promising.most: expected {found}"):
        written(diffusion, Promising("current", says=says), question, **settings)


def bools(*shape):
    return lambda context: torch.zeros(*shape, context.call.keys, dtype=torch.bool)


BAD_CHOICES = {
    "float": (lambda context: bools(1, 1)(context).float(), r"found float32 \[1, 1, \d+\]"),
    "int": (lambda context: bools(1, 1)(context).long(), "found int64"),
    "numpy": (lambda context: bools(1, 1)(context).numpy(), "found ndarray"),
    "number": (lambda context: 5, "found int"),
    "list": (lambda context: [[True]], "found list"),
    "rows": (bools(2, 1), r"found bool \[2, 1, \d+\]"),
    "heads": (bools(1, 7), r"found bool \[1, 7, \d+\]"),
    "queries": (bools(1, 1, 3), r"found bool \[1, 1, 3, \d+\]"),
    "keys": (lambda context: torch.zeros(1, 1, 3, dtype=torch.bool), r"found bool \[1, 1, 3\]"),
    "two axes": (bools(1), r"found bool \[1, \d+\]"),
    "meta": (lambda context: bools(1, 1)(context).to("meta"), "on the device meta"),
}


@pytest.mark.parametrize("case", BAD_CHOICES)
def test_a_choice_that_is_none_is_refused(model, settings, question, case):
    """Also where nothing in it is True."""
    answer, found = BAD_CHOICES[case]
    plain = sinkscope.generate(model, question, **settings).tokens
    with pytest.raises(CallError, match=rf"^Answering.choose in \S+: expected bool \[1, 1 or \d, \d+\] .* {found}"):
        written(model, Answering(answer), question, **settings)
    assert torch.equal(sinkscope.generate(model, question, **settings).tokens, plain)


ASKED = {
    "a list of positions": (lambda context: context.among([0, 1]), None),
    "positions of NumPy": (lambda context: context.among(np.array([0, 1])), None),
    "a set of positions": (lambda context: context.among({0, 1}), None),
    "lists of positions": (
        lambda context: context.among([[0], [1]]),
        r"where\[0\]: expected a whole number, found list",
    ),
    "tuples of positions": (
        lambda context: context.among(((0, 1),)),
        r"where\[0\]: expected a whole number, found tuple",
    ),
    "fractions": (lambda context: context.among((0.5, 1)), r"where\[0\]: expected a whole number, found 0.5"),
    "positions below 0": (lambda context: context.among([0, -1]), "where: expected positions from 0 upwards, found -1"),
    "a number": (lambda context: context.among(5), "where: expected text or a list of whole numbers, found 5"),
    "an unknown group": (
        lambda context: context.among("middle"),
        "where: expected masked or .* or answer, or positions, found 'middle'",
    ),
    "no groups to draw for": (
        lambda context: context.draw(0, -1),
        "groups: expected a whole number from 1 upwards, found -1",
    ),
    "a seed of text": (lambda context: context.draw("x", 1), "seed: expected a whole number, found 'x'"),
    "too few queries": (
        lambda context: context.received_from(torch.ones(1, 2, dtype=torch.bool)),
        r"queries: expected bool \[1, \d+\] \(batch, query\) of \S+, found bool \[1, 2\]",
    ),
    "queries of numbers": (lambda context: context.received_from([1, 2]), "queries: expected bool .*, found list"),
    "attention of a list": (
        lambda context: context.seen(["previous"], "local"),
        "observe: expected previous or current, found list",
    ),
    "a class of a list": (lambda context: context.of_class(["digit"]), "name: expected .*, found list"),
    "a class by no function": (
        lambda context: context.of_class("a", 5),
        "classify: expected a function from token id to class, found 5",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_a_rule_may_ask_for(model, settings, question, case):
    ask, message = ASKED[case]
    if message is not None:
        with pytest.raises(CallError, match=f"^{message}"):
            written(model, Answering(lambda context: ask(context)[:, None]), question, **settings)
        return
    tokens, effect = written(model, Answering(lambda context: ask(context)[:, None]), question, **settings)
    assert (
        torch.equal(tokens, written(model, interventions.HidePositions((0, 1)), question, **settings)[0])
        and effect.removed_share > 0
    )


@pytest.mark.parametrize("criterion", [5, None, (torch.zeros(1, 1, 2), "head"), "scope", ("x", "head")], ids=str)
def test_a_criterion_that_is_none_is_refused(diffusion, settings, question, criterion):
    class Ranking(Answering):
        def criterion(self, found, causal):
            return (found.columns, "nosuch") if criterion == "scope" else criterion

    def first(context):
        return context.among((0,))[:, None]

    with pytest.raises(
        CallError, match=r"^Ranking\.criterion: expected numbers .* and head or kv_head or layer, found"
    ):
        written(diffusion, Ranking(first), question, **settings)


@pytest.mark.parametrize("found", [3, None, ["a"], b"a"], ids=str)
def test_a_class_that_is_no_text_is_refused(diffusion, settings, question, found):
    rule = interventions.SameClassKeys(1, classify=lambda token: found)
    with pytest.raises(CallError, match=r"^classify: expected text, the class of token \d+, found"):
        written(diffusion, rule, question, **settings)


@pytest.mark.parametrize("classify", [5, "digit", ["digit"]])
def test_classes_need_a_function(classify):
    with pytest.raises(CallError, match=r"^classify: expected a function from token id to class, found"):
        interventions.SameClassKeys(1, classify=classify)


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


@pytest.mark.parametrize("parts", [5, "top:1", [HideTopSinks], (HideTopSinks(1), "top:1")], ids=str)
def test_rules_together_are_rules(parts):
    with pytest.raises(CallError, match="expected"):
        interventions.Composed(parts)
    with pytest.raises(CallError, match="expected"):
        compose(*(parts if isinstance(parts, list | tuple) else [parts]))


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
        match=r"name: expected mask or newline or .* or word, found 'comma'; for classes of your own give classify",
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


class Double(_Abstract):
    rule = "top:K"


class Nothing(_Abstract):
    rule = "none"


class Number(_Abstract):
    rule = 5


class Joined(_Abstract):
    rule = "my+x"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("test_adding_a_rule:Double", "Double: expected a word of its own, found 'top', which is HideTopSinks"),
        (
            "test_adding_a_rule:Nothing",
            "Nothing: expected a word of its own, found 'none', which is the rule that hides nothing",
        ),
        (
            "test_adding_a_rule:Number",
            "Number.rule: expected a word of letters, digits, _ and -, behind it : .*, found 5",
        ),
        ("test_adding_a_rule:Joined", r"Joined.rule: expected a word of .*, such as 'top:K', found 'my\+x'"),
        (
            "test_adding_a_rule:Asking",
            "entry point mine of sinkscope.interventions: expected an Intervention with a `rule`, .* found",
        ),
        ("pathlib", "expected an Intervention with a `rule`, or a module with some, found pathlib"),
        (
            "no_such_module_at_all",
            "entry point mine of sinkscope.interventions cannot be loaded from no_such_module_at_all: No module",
        ),
    ],
)
def test_a_bad_declaration_is_refused(value, message, monkeypatch):
    monkeypatch.setattr(extension_points, "entry_points", lambda group: [EntryPoint("mine", value, group)])
    with pytest.raises(CallError, match=message):
        known_rules.__wrapped__()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import no_such_module", "No module named"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
    ],
)
def test_a_module_that_fails_is_named_with_its_package(source, message, tmp_path, monkeypatch):
    (tmp_path / "failing_rules.py").write_text(source)
    monkeypatch.syspath_prepend(declare(tmp_path, "mine", "failing_rules"))
    expected = (
        rf"point mine of sinkscope.interventions of the package mine cannot be loaded from failing_rules: {message}"
    )
    with pytest.raises(CallError, match=expected):
        known_rules.__wrapped__()


def test_entry_points_that_cannot_be_read_are_told(tmp_path, monkeypatch):
    path = declare(tmp_path, "mine", "failing_rules")
    (file,) = tmp_path.rglob("entry_points.txt")
    file.write_text("[sinkscope.interventions]\nbottom failing_rules\n")
    monkeypatch.syspath_prepend(path)
    with pytest.raises(
        CallError,
        match=r"expected `name = module:object` in each line of the entry_points\.txt of all installed packages",
    ):
        known_rules.__wrapped__()


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


def test_arguments_and_options_are_the_fields_of_the_class(monkeypatch):
    monkeypatch.setattr(rules, "known_rules", lambda: {"mine": WithOptions})
    assert parse_rule("mine:2+0.5") == WithOptions(2, 0.5)
    assert parse_rule("mine:2+.5@there,strict,seed=3,weight=1e-2,layers=1") == WithOptions(
        2, 0.5, seed=3, strict=True, weight=0.01, way="there", layers=(1,)
    )
    with pytest.raises(CallError, match=r"expected mine:N\+SHARE, found '2' behind the colon"):
        parse_rule("mine:2")


@pytest.mark.parametrize(("old", "new"), [("Look", "RuleContext"), ("Seen", "Observation")])
def test_old_names_warn(old, new):
    with pytest.warns(DeprecationWarning, match=f"sinkscope.interventions.{old} is now called {new}"):
        assert getattr(interventions, old) is getattr(interventions, new)
    with pytest.raises(AttributeError, match="has no attribute 'Looks'"):
        _ = interventions.Looks
