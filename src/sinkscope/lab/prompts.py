r"""Few-shot prompts for the lab's held-out problems: solved training problems, then the question.

A prompt reads as a training canvas does, ``Q: …\nA: …\n\nQ: …\nA:``. Its shots depend on the task and the number of the
problem alone. With the shots of `SHOTS`, prompts are long enough for conclusions about hiding keys: lab-arith, 5 shots:
196 to 325 tokens, median 262, 99.8 % of the 1,319 within 200…320 (4 shots leave 20 % of them shorter than 200);
lab-code, 7 shots: 247 to 306, median 275, all 164 of them.
"""

import random
from collections.abc import Sequence
from itertools import islice

from sinkscope.errors import CallError
from sinkscope.lab.code_tasks import held_out_code_tasks, training_code_tasks
from sinkscope.lab.vocabulary import question_text, render
from sinkscope.lab.word_problems import Problem, held_out_problems, training_problems

SHOTS = {"lab-arith": 5, "lab-code": 7}
_HELD_OUT = {"lab-arith": held_out_problems, "lab-code": held_out_code_tasks}
_TRAINING = {"lab-arith": training_problems, "lab-code": training_code_tasks}


def few_shot_prompt(problem: Problem, index: int, shots: int) -> str:
    """The text a model gets for problem number ``index`` of its task; fewer shots are the first of more.

    Raises:
        CallError: less than no shots.
    """
    if shots < 0:
        raise CallError(f"shots: expected 0 or more, found {shots}")
    rng = random.Random(f"shots {problem.task} {index}")
    solved = islice(_TRAINING[problem.task](rng), shots)
    return "\n\n".join([*map(render, solved), question_text(problem)])


def held_out(task: str) -> Sequence[Problem]:
    """The fixed held-out problems of a task.

    Raises:
        CallError: no such task.
    """
    if task not in _HELD_OUT:
        raise CallError(f"no task {task!r}: expected {' or '.join(_HELD_OUT)}")
    return _HELD_OUT[task]()


def problem_prompt(task: str = "lab-arith", index: int = 0, shots: int | None = None) -> dict[str, str]:
    """Held-out problem number ``index`` as ``{"prompt", "answer"}``; see `problem_prompts`."""
    problems = held_out(task)
    if not 0 <= index < len(problems):
        raise CallError(f"{task} has the problems 0…{len(problems) - 1}, found {index}")
    problem = problems[index]
    prompt = few_shot_prompt(problem, index, SHOTS[task] if shots is None else shots)
    if task == "lab-code":
        return {"prompt": prompt, "answer": problem.worked, "tests": problem.result}
    return {"prompt": prompt, "answer": problem.result}


def problem_prompts(task: str = "lab-arith", count: int | None = None, shots: int | None = None) -> list[dict[str, str]]:
    """The first ``count`` held-out problems of a task, all of them when None.

    Returns:
        ``prompt`` and ``answer`` each: the number to find, or for lab-code a program that is right, with its ``tests``.

    Raises:
        CallError: no such task, more problems than it has, less than one.
    """
    problems = held_out(task)
    count = len(problems) if count is None else count
    if not 1 <= count <= len(problems):
        raise CallError(f"count: {task} has {len(problems)} held-out problems, found {count}")
    return [problem_prompt(task, index, shots) for index in range(count)]
