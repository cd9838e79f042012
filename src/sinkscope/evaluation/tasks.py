"""What is asked and how an answer is scored, one frozen `Task` each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import run_program
from sinkscope.lab.problems import Problem, read_result
from sinkscope.lab.prompts import SHOTS, few_shot_prompt, held_out

NEXT_QUESTION = "\n\nQ:"
Message = dict[str, str]


@dataclass(frozen=True)
class Score:
    """What came of one answer.

    Attributes:
        correct: whether it counts.
        read: what was compared: the number that was read, or the program that was run; None where there was none.
        reason: in one line.
        not_enforced: see `sandbox.ProgramResult`; empty for tasks that run nothing.
        measures: every published measure of the task, ``correct`` among them; empty for the lab's tasks.
    """

    correct: bool
    read: str | None
    reason: str
    not_enforced: tuple[str, ...] = ()
    measures: Mapping[str, bool] = field(default_factory=dict)


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
        score: a problem and a model's text; of a task of likelihoods the problem and what `choices.ask` found.
        messages: the same as a conversation, a pair of turns a shot; a last turn of the assistant is gone on with.
            None where the task is only asked as raw text.
        stops: an answer ends before the first of these; None leaves answers as they are.
        fingerprint: of the data that prompts with a number of shots are made of.
        asks_likelihoods: each problem is a `choices.Question`: nothing is written, its choices are compared.
        passes: how often the model writes; what it wrote stands before the next answer, and with several passes all of it is scored,
            the question in front.
    """

    name: str
    shots: int
    runs_programs: bool
    problems: Callable[[], Sequence[Any]]
    prompt: Callable[[Any, int, int], str]
    gold: Callable[[Any], str]
    score: Callable[[Any, Any], Score]
    messages: Callable[[Any, int, int], list[Message]] | None = None
    stops: tuple[str, ...] | None = None
    fingerprint: Callable[[int], str] = lambda shots: "lab"
    asks_likelihoods: bool = False
    passes: int = 1


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


_LIKELIHOODS = ("arc_easy", "arc_challenge", "hellaswag", "piqa", "race", "social_iqa", "lambada", "lambada_openai")
PUBLISHED = {
    "gsm8k": "gsm8k",
    "gsm8k_cot": "gsm8k",
    "gsm8k_two_pass": "gsm8k",
    "humaneval": "humaneval",
    "humaneval_instruct": "humaneval",
    **{name: name for name in _LIKELIHOODS},
}
"""Published tasks and the key of their data in ``--data``."""


def find_task(name: str, data: Mapping[str, Path] | None = None) -> Task:
    """A task by its name.

    Args:
        name: of the lab, or published.
        data: local files of published tasks, by task or by the key of their data.

    Raises:
        CallError: there is none.
    """
    if name in TASKS:
        return TASKS[name]
    if name not in PUBLISHED:
        raise CallError(f"no task {name!r}: expected one of {', '.join([*TASKS, *PUBLISHED])}")
    from sinkscope.evaluation import gsm8k, humaneval

    given = data or {}
    if name in _LIKELIHOODS:
        return _likelihood_task(name, given.get(name))
    build = {
        "gsm8k": gsm8k.gsm8k,
        "gsm8k_cot": gsm8k.gsm8k_cot,
        "gsm8k_two_pass": gsm8k.gsm8k_two_pass,
        "humaneval": humaneval.humaneval,
        "humaneval_instruct": humaneval.humaneval_instruct,
    }
    return build[name](given.get(name, given.get(PUBLISHED[name])))


def _likelihood_task(name: str, data: Path | None) -> Task:
    from sinkscope.evaluation.choices import BENCHMARKS, Asked, Question, judge, questions

    rows, fingerprint = questions(name, data)

    def score(question: Question, asked: Asked) -> Score:
        best, measures = judge(question, asked, BENCHMARKS[name].normed)
        read, right = question.choices[best] if len(question.choices) > 1 or measures["acc"] else None, question.choices[question.gold]
        return Score(measures["acc"], read, f"{read!r}, expected {right!r}", measures=measures)

    def prompt(question: Question, index: int, shots: int) -> str:
        if shots:
            raise CallError(f"shots: {name} is asked without any, found {shots}")
        return question.context

    def gold(question: Question) -> str:
        return question.choices[question.gold]

    return Task(name, 0, False, rows, prompt, gold, score, fingerprint=lambda shots: fingerprint(), asks_likelihoods=True)


def read_data_flags(flags: Sequence[str]) -> dict[str, Path]:
    """``TASK=PATH`` each, as in ``--data``.

    Raises:
        CallError: no ``=``, a task without data of its own, a task given twice.
    """
    found: dict[str, Path] = {}
    for flag in flags:
        name, separator, path = flag.partition("=")
        if not separator or not path or name not in PUBLISHED:
            raise CallError(f"--data: expected TASK=PATH with a task of {', '.join(PUBLISHED)}, found {flag!r}")
        if name in found:
            raise CallError(f"--data: {name} is given twice")
        found[name] = Path(path)
    return found
