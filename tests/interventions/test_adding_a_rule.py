"""A rule that somebody adds: asking for attention is enough, or an error; the documentation's example."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import EntryPoint
from typing import Literal

import pytest
import torch
from adding_page import files_of_the_page

import sinkscope
from sinkscope import extension_points
from sinkscope.interventions import HideTopSinks, Intervention, known_rules, parse_rule
from sinkscope.interventions import intervention as rules
from sinkscope.interventions.rule_context import class_in

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
class AskingForUnhidden(Asking):
    unhidden_pass = True


def written(model, rule, question, **settings):
    with rule(model) as running:
        tokens = sinkscope.generate(model, question, **settings).tokens
    return tokens, running.effect


@pytest.mark.parametrize(("observe", "measured"), [("previous", "hidden"), ("current", "clean")])
def test_asking_for_attention_is_enough(model, settings, question, observe, measured):
    kind = AskingForUnhidden if measured == "clean" else Asking
    tokens, effect = written(model, kind(observe=observe, measured=measured), question, **settings)
    expected, known = written(model, HideTopSinks(1, observe=observe, measured=measured), question, **settings)
    assert effect.removed_share > 0 and torch.equal(tokens, expected)
    assert effect.removed_share == pytest.approx(known.removed_share)


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


@pytest.mark.parametrize("classify", [None, lambda token: "word" if token % 3 else "other"], ids=["own", "given"])
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


def test_arguments_and_options_are_the_fields_of_the_class(monkeypatch):
    monkeypatch.setattr(rules, "known_rules", lambda: {"mine": WithOptions})
    assert parse_rule("mine:2+.5@there,strict,seed=3,weight=1e-2,layers=1") == WithOptions(
        2, 0.5, seed=3, strict=True, weight=0.01, way="there", layers=(1,)
    )


def test_a_rule_of_another_package_is_found(monkeypatch):
    point = EntryPoint("mine", "test_adding_a_rule:WithOptions", "sinkscope.interventions")
    monkeypatch.setattr(extension_points, "entry_points", lambda group: [point])
    assert known_rules.__wrapped__()["mine"].__name__ == "WithOptions"
