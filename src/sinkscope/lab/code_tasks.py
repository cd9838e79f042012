"""Small code tasks: a sentence asks for a Python function, and the answer is checked by running it."""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sinkscope.lab.word_problems import Problem, endless, first_different

HELD_OUT_SEED = 20251016
HELD_OUT_COUNT = 164

_NAMES = "f g h solve compute apply run work make find get calc step count check value answer result change process"
FUNCTIONS = _NAMES.split()
ARGUMENTS = "x y z n m k a b p q".split()


@dataclass(frozen=True)
class CodeTemplate:
    """A request, the body of the right function, and the arguments of its tests, as code. All three may hold slots."""

    name: str
    request: str
    body: str
    trials: tuple[str, ...]


_NUMBERS = ("0", "1", "7", "-4", "12")
_PAIRS = ("1, 2", "5, 3", "-2, 4", "6, 6")
_LISTS = ("[3, 1, 2]", "[5]", "[4, 4, 9, 0]")
_TEXTS = ("'abc'", "'a'", "'level up'")

CODE_TEMPLATES = (
    CodeTemplate("add", "returns {x} plus {c}", "return {x} + {c}", _NUMBERS),
    CodeTemplate("subtract", "returns {x} minus {c}", "return {x} - {c}", _NUMBERS),
    CodeTemplate("multiply", "returns {x} times {c}", "return {x} * {c}", _NUMBERS),
    CodeTemplate("affine", "returns {x} times {c} plus {d}", "return {x} * {c} + {d}", _NUMBERS),
    CodeTemplate("greater", "tells whether {x} is greater than {c}", "return {x} > {c}", (*_NUMBERS, "{c}", "{c} + 1")),
    CodeTemplate("even", "tells whether {x} is even", "return {x} % 2 == 0", _NUMBERS),
    CodeTemplate("sum", "returns the sum of {x} and {y}", "return {x} + {y}", _PAIRS),
    CodeTemplate(
        "largest", "returns the larger of {x} and {y}", "if {x} > {y}:\n        return {x}\n    return {y}", _PAIRS
    ),
    CodeTemplate("total", "returns the sum of the list {x}", "return sum({x})", _LISTS),
    CodeTemplate("length", "returns the length of the list {x} plus {c}", "return len({x}) + {c}", _LISTS),
    CodeTemplate("last", "returns the last element of the list {x}", "return {x}[-1]", _LISTS),
    CodeTemplate("repeat", "repeats the string {x} {c} times", "return {x} * {c}", _TEXTS),
    CodeTemplate("reverse", "reverses the string {x}", "return {x}[::-1]", _TEXTS),
)


def make_code_task(rng: random.Random) -> Problem:
    """Return a random task; its ``result`` holds the tests, assertions with values that are computed here."""
    template = rng.choice(CODE_TEMPLATES)
    function = rng.choice(FUNCTIONS)
    x, y = rng.sample([argument for argument in ARGUMENTS if argument != function], 2)
    slots = {"x": x, "y": y, "c": rng.randint(2, 9), "d": rng.randint(1, 9)}
    arguments = f"{x}, {y}" if "{y}" in template.request else x
    worked = f"def {function}({arguments}):\n    {template.body.format(**slots)}"
    question = f"Write a function {function}({arguments}) that {template.request.format(**slots)}."
    scope: dict[str, object] = {}
    exec(worked, scope)  # our own template, not a model's answer
    trials = [trial.format(**slots) for trial in template.trials]
    tests = "\n".join(f"assert {function}({trial}) == {scope[function](*eval(f'({trial},)'))!r}" for trial in trials)  # type: ignore[operator]
    return Problem("lab-code", question, worked, tests, template.name)


@functools.cache
def held_out_code_tasks() -> tuple[Problem, ...]:
    """Return the fixed held-out set: 164 different tasks, always the same ones in the same order."""
    return first_different(make_code_task, HELD_OUT_SEED, HELD_OUT_COUNT)


def training_code_tasks(rng: random.Random) -> Iterator[Problem]:
    """Yield tasks without end, none of them with a held-out question."""
    return endless(make_code_task, rng, held_out_code_tasks)
