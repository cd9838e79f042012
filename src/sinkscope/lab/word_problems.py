"""Word problems with worked answers: a seeded, endless stream and a fixed held-out set.

Every problem has one to three operations on numbers up to 12, so that a model of a few million parameters can learn
them on two CPU cores. The last line of a worked answer is ``#### result``, as in GSM8K.

Held-out problems are only new *texts*: their numbers, names and templates all occur in training, in other combinations.
"""

import functools
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

HELD_OUT_SEED = 20251015
HELD_OUT_COUNT = 1319
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
    """One task for a model.

    Attributes:
        task: ``"lab-arith"`` or ``"lab-code"``.
        question: text after ``Q: ``.
        worked: the answer a model is trained to give, without its leading space.
        result: the right number after ``####``, or for code the tests that must pass.
        template: name of its template.
    """

    task: str
    question: str
    worked: str
    result: str
    template: str


Make = Callable[[random.Random], Problem]


@dataclass(frozen=True)
class Template:
    """A question with slots, and its operations, in which a letter is a slot and ``#`` the result so far."""

    name: str
    question: str
    operations: tuple[str, ...]


TEMPLATES = (
    Template("buy", "{name} has {a} {item} and buys {b} more. How many {item} does {name} have now?", ("a+b",)),
    Template("give", "{name} had {a} {item} and gave {b} to {other}. How many {item} are left?", ("a-b",)),
    Template("boxes", "There are {a} boxes with {b} {item} in each box. How many {item} are there?", ("a*b",)),
    Template(
        "find",
        "{name} found {a} {item} in the {place} and {b} in the {place2}. How many {item} did {name} find?",
        ("a+b",),
    ),
    Template(
        "gift",
        "{name} has {a} {item}. {other} gives {name} {b} more, and then {name} loses {c}. "
        "How many {item} does {name} have?",
        ("a+b", "#-c"),
    ),
    Template(
        "days",
        "{name} picked {a} {item} on {day}, {b} on {day2} and {c} on {day3}. How many {item} is that?",
        ("a+b", "#+c"),
    ),
    Template(
        "bags", "{name} buys {a} bags with {b} {item} in each and breaks {c}. How many {item} are left?", ("a*b", "#-c")
    ),
    Template(
        "together",
        "{name} has {a} {item}. {other} has {b} more than {name}. How many {item} do they have together?",
        ("a+b", "#+a"),
    ),
    Template(
        "shop",
        "A shop had {a} {item}. It sold {b} in the morning and {c} in the evening. How many {item} are left?",
        ("a-b", "#-c"),
    ),
    Template(
        "share",
        "{name} has {a} {item} and {other} has {b}. They need {c} {item} for the {place}. How many {item} are missing?",
        ("a+b", "c-#"),
    ),
    Template(
        "chain",
        "{name} has {a} {item}, finds {b}, gives {c} to {other} and buys {d} more. How many {item} does {name} have?",
        ("a+b", "#-c", "#+d"),
    ),
    Template(
        "week",
        "{name} made {a} {item} on {day}, {b} on {day2}, {c} on {day3} and sold {d}. How many {item} are left?",
        ("a+b", "#+c", "#-d"),
    ),
    Template(
        "crates",
        "A truck brings {a} crates with {b} {item} in each. {c} are broken and {d} are sold. How many {item} are left?",
        ("a*b", "#-c", "#-d"),
    ),
    Template(
        "class",
        "Each of {a} children brings {b} {item}. The teacher adds {c} and hands out {d}. "
        "How many {item} are there now?",
        ("a*b", "#+c", "#-d"),
    ),
)

_SYMBOLS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def make_problem(rng: random.Random, templates: tuple[str, ...] = ()) -> Problem:
    """Return a random problem, from ``templates`` if any are named; every number and result is from 1 to 12."""
    template = rng.choice([one for one in TEMPLATES if one.name in templates] if templates else TEMPLATES)
    letters = sorted({letter for operation in template.operations for letter in operation if letter.isalpha()})
    while True:
        numbers = {letter: rng.randint(1, 9) for letter in letters}
        first = template.operations[0]
        if "*" in first:
            numbers["a"], numbers["b"] = rng.randint(2, 6), rng.randint(2, 6)
        elif "-" in first:
            numbers["a"] = rng.randint(2, LARGEST)
        elif template.operations[-1] == "c-#":
            numbers["c"] = rng.randint(3, LARGEST)
        steps = _work_out(template.operations, numbers)
        if all(1 <= result <= LARGEST for *_, result in steps):
            break
    name, other = rng.sample(NAMES, 2)
    place, place2 = rng.sample(PLACES, 2)
    day, day2, day3 = rng.sample(DAYS, 3)
    item = rng.choice(ITEMS)
    question = template.question.format(
        name=name, other=other, place=place, place2=place2, day=day, day2=day2, day3=day3, item=item, **numbers
    )
    lines = [f"{left} {symbol} {right} = {result}.\n" for left, symbol, right, result in steps]
    result = str(steps[-1][-1])
    return Problem("lab-arith", question, "Then ".join(lines) + f"#### {result}", result, template.name)


def _work_out(operations: tuple[str, ...], numbers: dict[str, int]) -> list[tuple[int, str, int, int]]:
    steps, so_far = [], 0
    for operation in operations:
        left, symbol, right = operation
        values = [so_far if side == "#" else numbers[side] for side in (left, right)]
        so_far = _SYMBOLS[symbol](*values)
        steps.append((values[0], symbol, values[1], so_far))
    return steps


def first_different(make: Make, seed: int, count: int) -> tuple[Problem, ...]:
    """Return the first problems with different questions that a seed gives."""
    rng, problems = random.Random(seed), dict[str, Problem]()
    while len(problems) < count:
        problem = make(rng)
        problems.setdefault(problem.question, problem)
    return tuple(problems.values())


def endless(make: Make, rng: random.Random, held_out: Callable[[], Iterable[Problem]]) -> Iterator[Problem]:
    """Yield problems without end, none of them with a held-out question."""
    questions = questions_of(held_out)
    while True:
        if (problem := make(rng)).question not in questions:
            yield problem


@functools.cache
def questions_of(problems: Callable[[], Iterable[Problem]]) -> frozenset[str]:
    """Return the questions of a set that is always the same."""
    return frozenset(problem.question for problem in problems())


@functools.cache
def held_out_problems() -> tuple[Problem, ...]:
    """Return the fixed held-out set: 1,319 different problems, always the same ones in the same order."""
    return first_different(make_problem, HELD_OUT_SEED, HELD_OUT_COUNT)


def training_problems(rng: random.Random, templates: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield problems without end, none of them with a held-out question, from ``templates`` if any are named."""
    return endless(functools.partial(make_problem, templates=templates), rng, held_out_problems)


def read_result(answer: str) -> str | None:
    """Return the whole number after the last ``####`` of an answer; None where there is none."""
    found = re.findall(r"####\s*(-?\d+)(?!\d)", answer)
    return found[-1] if found else None
