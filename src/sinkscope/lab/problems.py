"""The lab's problems: word problems with worked answers, and code tasks, each an endless stream and a held-out set.

A word problem has one to three operations on numbers up to 12; the last line of its worked answer is ``#### result``,
as in GSM8K. A code task asks for a Python function; the answer is checked by running it. Held-out problems are only new
*texts*: their numbers, names and templates all occur in training, in other combinations.
"""

import functools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import CallError

LARGEST = 12

NAMES = (
    "Tom Anna Ben Mia Leo Zoe Max Eva Sam Lily Jack Nora Omar Ruth Paul Ines "
    "Finn Rosa Hugo Clara Ivan Maya Noah Ada Carl Jane Otto Vera Alan Kim"
).split()
ITEMS = (
    "apples books pens cards shells stamps coins cookies marbles eggs balls plums "
    "stickers candles flowers keys cups hats toys stones"
).split()
PLACES = "garden kitchen park school office forest yard shop".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


@dataclass(frozen=True)
class Problem:
    """One task: ``question`` follows ``Q: ``, ``worked`` is the answer to learn, without its leading space; ``result``
    is the number after ``####``, or the tests that a program must pass.
    """

    task: str
    question: str
    worked: str
    result: str
    template: str


QUESTIONS = {
    "buy": "{name} has {a} {item} and buys {b} more. How many {item} does {name} have now?",
    "give": "{name} had {a} {item} and gave {b} to {other}. How many {item} are left?",
    "boxes": "There are {a} boxes with {b} {item} in each box. How many {item} are there?",
    "find": "{name} found {a} {item} in the {place} and {b} in the {place2}. How many {item} did {name} find?",
    "gift": "{name} has {a} {item}. {other} gives {name} {b} more, and then {name} loses {c}. "
    "How many {item} does {name} have?",
    "days": "{name} picked {a} {item} on {day}, {b} on {day2} and {c} on {day3}. How many {item} is that?",
    "bags": "{name} buys {a} bags with {b} {item} in each and breaks {c}. How many {item} are left?",
    "together": "{name} has {a} {item}. {other} has {b} more than {name}. How many {item} do they have together?",
    "shop": "A shop had {a} {item}. It sold {b} in the morning and {c} in the evening. How many {item} are left?",
    "share": "{name} has {a} {item} and {other} has {b}. They need {c} {item} for the {place}. "
    "How many {item} are missing?",
    "chain": "{name} has {a} {item}, finds {b}, gives {c} to {other} and buys {d} more. "
    "How many {item} does {name} have?",
    "week": "{name} made {a} {item} on {day}, {b} on {day2}, {c} on {day3} and sold {d}. How many {item} are left?",
    "crates": "A truck brings {a} crates with {b} {item} in each. {c} are broken and {d} are sold. "
    "How many {item} are left?",
    "class": "Each of {a} children brings {b} {item}. The teacher adds {c} and hands out {d}. "
    "How many {item} are there now?",
}
"""Templates of word problems by name."""
OPERATIONS = {"buy": "a+b", "give": "a-b", "boxes": "a*b", "find": "a+b", "gift": "a+b #-c", "days": "a+b #+c"}
OPERATIONS |= {"bags": "a*b #-c", "together": "a+b #+a", "shop": "a-b #-c", "share": "a+b c-#", "chain": "a+b #-c #+d"}
OPERATIONS |= {"week": "a+b #+c #-d", "crates": "a*b #-c #-d", "class": "a*b #+c #-d"}
"""The operations of each template; a letter is a slot of its question, and ``#`` the result so far."""

_SYMBOLS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def make_problem(rng: random.Random, templates: tuple[str, ...] = ()) -> Problem:
    """Return a random problem, from ``templates`` if any are named; every number and result is from 1 to 12."""
    template = rng.choice([one for one in QUESTIONS if one in templates or not templates])
    operations = OPERATIONS[template].split()
    letters = sorted({letter for operation in operations for letter in operation if letter.isalpha()})
    while True:
        numbers = {letter: rng.randint(1, 9) for letter in letters}
        if "*" in operations[0]:
            numbers["a"], numbers["b"] = rng.randint(2, 6), rng.randint(2, 6)
        elif "-" in operations[0]:
            numbers["a"] = rng.randint(2, LARGEST)
        elif operations[-1] == "c-#":
            numbers["c"] = rng.randint(3, LARGEST)
        steps, result = [], 0
        for left, symbol, right in operations:
            one, other = (result if side == "#" else numbers[side] for side in (left, right))
            result = _SYMBOLS[symbol](one, other)
            steps.append((one, symbol, other, result))
        if all(1 <= result <= LARGEST for *_, result in steps):
            break
    slots: dict[str, str] = dict(zip(("name", "other"), rng.sample(NAMES, 2), strict=True))
    slots |= zip(("place", "place2"), rng.sample(PLACES, 2), strict=True)
    slots |= zip(("day", "day2", "day3"), rng.sample(DAYS, 3), strict=True)
    question = QUESTIONS[template].format(**slots, item=rng.choice(ITEMS), **numbers)
    lines = [f"{one} {symbol} {other} = {result}.\n" for one, symbol, other, result in steps]
    return Problem("lab-arith", question, "Then ".join(lines) + f"#### {result}", str(result), template)


FUNCTIONS = (
    "f g h solve compute apply run work make find get calc step count check value answer result change process"
).split()
ARGUMENTS = "x y z n m k a b p q".split()


_NUMBERS = ("0", "1", "7", "-4", "12")
_PAIRS = ("1, 2", "5, 3", "-2, 4", "6, 6")
_LISTS = ("[3, 1, 2]", "[5]", "[4, 4, 9, 0]")
_TEXTS = ("'abc'", "'a'", "'level up'")

CODE_TEMPLATES = {
    "add": ("returns {x} plus {c}", "return {x} + {c}", _NUMBERS),
    "subtract": ("returns {x} minus {c}", "return {x} - {c}", _NUMBERS),
    "multiply": ("returns {x} times {c}", "return {x} * {c}", _NUMBERS),
    "affine": ("returns {x} times {c} plus {d}", "return {x} * {c} + {d}", _NUMBERS),
    "greater": ("tells whether {x} is greater than {c}", "return {x} > {c}", (*_NUMBERS, "{c}", "{c} + 1")),
    "even": ("tells whether {x} is even", "return {x} % 2 == 0", _NUMBERS),
    "sum": ("returns the sum of {x} and {y}", "return {x} + {y}", _PAIRS),
    "largest": ("returns the larger of {x} and {y}", "if {x} > {y}:\n        return {x}\n    return {y}", _PAIRS),
    "total": ("returns the sum of the list {x}", "return sum({x})", _LISTS),
    "length": ("returns the length of the list {x} plus {c}", "return len({x}) + {c}", _LISTS),
    "last": ("returns the last element of the list {x}", "return {x}[-1]", _LISTS),
    "repeat": ("repeats the string {x} {c} times", "return {x} * {c}", _TEXTS),
    "reverse": ("reverses the string {x}", "return {x}[::-1]", _TEXTS),
}
"""Code tasks by name: the request, the body of the right function, and the arguments of its tests."""


def make_code_task(rng: random.Random) -> Problem:
    """Return a random task; its ``result`` holds the tests, assertions with values that are computed here."""
    template = rng.choice([*CODE_TEMPLATES])
    request, body, arguments_of_tests = CODE_TEMPLATES[template]
    function = rng.choice(FUNCTIONS)
    x, y = rng.sample([argument for argument in ARGUMENTS if argument != function], 2)
    slots = {"x": x, "y": y, "c": rng.randint(2, 9), "d": rng.randint(1, 9)}
    arguments = f"{x}, {y}" if "{y}" in request else x
    worked = f"def {function}({arguments}):\n    {body.format(**slots)}"
    question = f"Write a function {function}({arguments}) that {request.format(**slots)}."
    scope: dict[str, Any] = {}
    exec(worked, scope)  # our own template, not a model's answer
    trials = [trial.format(**slots) for trial in arguments_of_tests]
    tests = "\n".join(f"assert {function}({trial}) == {scope[function](*eval(f'({trial},)'))!r}" for trial in trials)
    return Problem("lab-code", question, worked, tests, template)


SUMS = ("buy", "give", "find")  # templates with a single addition or subtraction
SETS = {"lab-arith": (make_problem, 20251015, 1319), "lab-code": (make_code_task, 20251016, 164)}
"""How a problem of a task is made, and the seed and the size of its held-out set."""


@functools.cache
def held_out(task: str) -> tuple[Problem, ...]:
    """Return the held-out problems of a task, all different, always the same ones in the same order; those of lab-sums
    are some of lab-arith's. Raise CallError where there is no such task.
    """
    if task == "lab-sums":
        return tuple(problem for problem in held_out("lab-arith") if problem.template in SUMS)
    if task not in SETS:
        raise CallError(f"no task {task!r}: expected one of {', '.join([*SETS, 'lab-sums'])}")
    make, seed, count = SETS[task]
    rng, problems = random.Random(seed), dict[str, Problem]()
    while len(problems) < count:
        problem = make(rng)
        problems.setdefault(problem.question, problem)
    return tuple(problems.values())


def training_problems(rng: random.Random, task: str, *templates: tuple[str, ...]) -> Iterator[Problem]:
    """Yield problems without end, none of them with a held-out question; see `make_problem` for its ``templates``."""
    (make, *_), questions = SETS[task], {problem.question for problem in held_out(task)}
    drawn: Iterator[Problem] = iter(lambda: make(rng, *templates), None)
    return (problem for problem in drawn if problem.question not in questions)


def render(problem: Problem) -> str:
    """Return a problem with its worked answer, as in the shots of a prompt."""
    return f"{question_text(problem)} {problem.worked}"


def question_text(problem: Problem) -> str:
    """Return a problem up to the beginning of its answer."""
    return f"Q: {problem.question}\nA:"


def read_result(answer: str) -> str | None:
    """Return the whole number after the last ``####`` of an answer; None where there is none."""
    found = re.findall(r"####\s*(-?\d+)(?!\d)", answer)
    return found[-1] if found else None
