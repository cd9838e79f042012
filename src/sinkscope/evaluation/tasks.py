"""The tasks by name: the lab's and the published ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.task import Score, Task
from sinkscope.lab.problems import Problem, read_result
from sinkscope.lab.prompts import SHOTS, few_shot_prompt, held_out

NEXT_QUESTION = "\n\nQ:"


def first_answer(text: str) -> str:
    """Return an answer up to the point where the model writes the next question itself."""
    return text.split(NEXT_QUESTION, 1)[0]


def score_number(problem: Problem, text: str) -> Score:
    """Compare the number behind ``####`` in the first answer with the right one."""
    found = read_result(first_answer(text))
    if found is None:
        return Score(False, None, "no number after ####")
    return Score(found == problem.result, found, f"{found}, expected {problem.result}")


def score_program(problem: Problem, text: str) -> Score:
    """Run the first answer and then the problem's tests in the sandbox."""
    program = first_answer(text)
    result = run_program(f"{program}\n{problem.result}\n")
    return Score(result.passed, program, result.reason, result.not_enforced)


def _lab_task(name: str, score: Callable[[Problem, str], Score], runs_programs: bool) -> Task:
    return Task(
        name, SHOTS[name], runs_programs, lambda: held_out(name), few_shot_prompt, lambda problem: problem.result, score
    )


TASKS = {
    "lab-arith": _lab_task("lab-arith", score_number, False),
    "lab-code": _lab_task("lab-code", score_program, True),
    "lab-sums": _lab_task("lab-sums", score_number, False),
}

LIKELIHOODS = ("arc_easy", "arc_challenge", "hellaswag", "piqa", "race", "social_iqa", "lambada", "lambada_openai")
PUBLISHED = dict.fromkeys(("gsm8k", "gsm8k_cot", "gsm8k_two_pass"), "gsm8k")
PUBLISHED |= dict.fromkeys(("humaneval", "humaneval_instruct"), "humaneval") | {name: name for name in LIKELIHOODS}
"""Published tasks, and the name of their data in ``--data``."""


def find_task(name: str, data: Mapping[str, Path] | None = None) -> Task:
    """Return a task of `TASKS` or `PUBLISHED`, with local files by task or by the name of their data.

    Raises:
        CallError: there is no such task.
    """
    if name in TASKS:
        return TASKS[name]
    if name not in PUBLISHED:
        raise CallError(f"no task {name!r}: expected one of {', '.join([*TASKS, *PUBLISHED])}")
    given = (data or {}).get(name, (data or {}).get(PUBLISHED[name]))
    if name in LIKELIHOODS:
        from sinkscope.evaluation.choices import likelihood_task

        return likelihood_task(name, given)
    from sinkscope.evaluation import gsm8k, humaneval

    return getattr(gsm8k if name.startswith("gsm8k") else humaneval, name)(given)


def read_data_flags(flags: Sequence[str]) -> dict[str, Path]:
    """Return the paths of ``TASK=PATH`` each, as in ``--data``."""
    found: dict[str, Path] = {}
    for flag in flags:
        name, _, path = flag.partition("=")
        if not path or name not in PUBLISHED or name in found:
            raise CallError(f"--data: expected TASK=PATH once each, TASK of {', '.join(PUBLISHED)}, found {flag!r}")
        found[name] = Path(path)
    return found
