import itertools
import random

import pytest

from sinkscope.lab.problems import SETS, held_out, question_text, render, training_problems
from sinkscope.lab.prompts import SHOTS, few_shot_prompt


@pytest.mark.parametrize("task", SETS)
def test_a_prompt_reads_as_a_canvas_does(task):
    problem = held_out(task)[17]
    prompt = few_shot_prompt(problem, 17, 3)
    solved = list(itertools.islice(training_problems(random.Random(f"shots {task} 17"), task), 3))
    assert prompt == f"{render(solved[0])}\n\n{render(solved[1])}\n\n{render(solved[2])}\n\n{question_text(problem)}"
    assert prompt.startswith("Q: ")
    assert prompt.endswith("\nA:")


@pytest.mark.parametrize("task", SETS)
def test_no_shot_is_held_out(task):
    held = {problem.question for problem in held_out(task)}
    for index, problem in enumerate(held_out(task)[:60]):
        shots = few_shot_prompt(problem, index, SHOTS[task]).split("\n\n")[:-1]
        assert len(shots) == SHOTS[task]
        assert not held & {shot.removeprefix("Q: ").split("\nA:")[0] for shot in shots}
