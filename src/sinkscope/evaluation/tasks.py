"""What is asked and how an answer is scored, one frozen `Task` each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import run_program
from sinkscope.lab.problems import Problem, read_result
from sinkscope.lab.prompts import SHOTS, few_shot_prompt, held_out

NEXT_QUESTION = "\n\nQ:"


@dataclass(frozen=True)
class Score:
    """What came of one answer.

    Attributes:
        correct: whether it counts.
        read: what was compared: the number that was read, or the program that was run; None where there was none.
        reason: in one line.
        not_enforced: see `sandbox.ProgramResult`; empty for tasks that run nothing.
    """

    correct: bool
    read: str | None
    reason: str
    not_enforced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A set of problems.

    Attributes:
        name: as in ``--tasks``.
        shots: solved problems in a prompt, unless another number is asked for.
        runs_programs: whether scoring runs what a model wrote.
        problems: loads them, always the same ones in the same order.
        prompt: the text for a problem, its number and a number of shots.
        gold: what an answer is held against.
        score: a problem and a model's text.
    """

    name: str
    shots: int
    runs_programs: bool
    problems: Callable[[], Sequence[Any]]
    prompt: Callable[[Any, int, int], str]
    gold: Callable[[Any], str]
    score: Callable[[Any, str], Score]


def first_answer(text: str) -> str:
    """An answer up to where the model asks itself the next question."""
    return text.split(NEXT_QUESTION, 1)[0]


def score_number(problem: Problem, text: str) -> Score:
    """Exact match of the number behind ``####`` in the first answer."""
    found = read_result(first_answer(text))
    if found is None:
        return Score(False, None, "no number after ####")
    return Score(found == problem.result, found, f"{found}, expected {problem.result}")


def score_program(problem: Problem, text: str) -> Score:
    """The first answer, then the problem's tests, run in the sandbox."""
    program = first_answer(text)
    result = run_program(f"{program}\n{problem.result}\n")
    return Score(result.passed, program, result.reason, result.not_enforced)


def _lab_task(name: str, score: Callable[[Problem, str], Score], runs_programs: bool) -> Task:
    return Task(name, SHOTS[name], runs_programs, lambda: held_out(name), few_shot_prompt, lambda problem: problem.result, score)


TASKS = {task.name: task for task in (_lab_task("lab-arith", score_number, False), _lab_task("lab-code", score_program, True))}


def find_task(name: str) -> Task:
    """A task by its name.

    Raises:
        CallError: there is none.
    """
    if name not in TASKS:
        raise CallError(f"no task {name!r}: expected {' or '.join(TASKS)}")
    return TASKS[name]
