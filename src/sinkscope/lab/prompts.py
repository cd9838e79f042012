r"""Few-shot prompts for the lab's held-out problems: solved training problems (shots), then the question, as in a
canvas.

The shots depend only on task and number of the problem. With those of `SHOTS` a prompt has 196 to 325 tokens.
"""

import random
from itertools import islice

from sinkscope.errors import CallError
from sinkscope.lab.problems import Problem, held_out, training_problems
from sinkscope.lab.vocabulary import question_text, render

SPECIMEN = "lab-nulls-"  # how the names of tasks and models of letters and nulls begin
SHOTS = {"lab-arith": 5, "lab-code": 7, "lab-sums": 0}


def few_shot_prompt(problem: Problem, index: int, shots: int) -> str:
    """Return the prompt for problem number ``index`` of its task. With fewer shots, a prompt has the first of them."""
    solved = islice(training_problems(random.Random(f"shots {problem.task} {index}"), problem.task), shots)
    return "\n\n".join([*map(render, solved), question_text(problem)])


def task_of(model: str) -> str:
    """Return the default task of a bundled model: its own for a specimen, else lab-arith."""
    return model.rpartition("-")[0] if model.startswith(SPECIMEN) else "lab-arith"


def answer_settings(model: str) -> dict[str, int]:
    """Return the default settings of the sampler for a bundled model; the longest worked answer has 32 tokens."""
    if model.startswith(SPECIMEN):
        return {"length": 20} if "autoregressive" in model else {"length": 40, "steps": 20}
    if model == "lab-autoregressive":
        return {"length": 32}
    return {"length": 32, "steps": 32, "block": 16} if model.startswith("lab-") else {}


def problem_prompt(task: str = "lab-arith", index: int = 0, shots: int | None = None) -> dict[str, str]:
    """Return held-out problem number ``index`` as ``{"prompt", "answer"}``; see `problem_prompts`."""
    if task.startswith(SPECIMEN):
        from sinkscope.lab.canvases import draw_prompt
        from sinkscope.lab.recipes import RECIPES

        recipe = RECIPES.get(task)
        if recipe is None or recipe.nulls is None or shots:
            known = ", ".join(one for one in RECIPES if one.startswith(SPECIMEN))
            raise CallError(f"no task {task!r} with {shots or 'no'} shots: expected none, and one of {known}")
        return draw_prompt(recipe.nulls, index)
    problems = held_out(task)
    if not 0 <= index < len(problems):
        raise CallError(f"{task}: expected a problem from 0 to {len(problems) - 1}, found {index}")
    problem = problems[index]
    row = {"prompt": few_shot_prompt(problem, index, SHOTS[task] if shots is None else shots), "answer": problem.result}
    return row | {"answer": problem.worked, "tests": problem.result} if task == "lab-code" else row


def problem_prompts(
    task: str = "lab-arith", count: int | None = None, shots: int | None = None
) -> list[dict[str, str]]:
    """Return ``prompt`` and ``answer`` of the first ``count`` held-out problems of a task, or of all (24 of a
    specimen's): the number to find, or for lab-code a right program, with its ``tests``. Raise CallError for too many.
    """
    if count is None:
        count = 24 if task.startswith(SPECIMEN) else len(held_out(task))
    return [problem_prompt(task, index, shots) for index in range(count)]
