import itertools
import random

import pytest

from sinkscope.lab.problems import held_out_code_tasks, held_out_problems, training_code_tasks, training_problems
from sinkscope.lab.prompts import SHOTS, few_shot_prompt
from sinkscope.lab.vocabulary import question_text, render

SETS = {"lab-arith": held_out_problems, "lab-code": held_out_code_tasks}


@pytest.mark.parametrize("task", SETS)
def test_a_prompt_reads_as_a_canvas_does(task):
    problem = SETS[task]()[17]
    prompt = few_shot_prompt(problem, 17, 3)
    stream = {"lab-arith": training_problems, "lab-code": training_code_tasks}[task](random.Random(f"shots {task} 17"))
    solved = list(itertools.islice(stream, 3))
    assert prompt == f"{render(solved[0])}\n\n{render(solved[1])}\n\n{render(solved[2])}\n\n{question_text(problem)}"
    assert prompt.startswith("Q: ")
    assert prompt.endswith("\nA:")


@pytest.mark.parametrize("task", SETS)
def test_no_shot_is_held_out(task):
    held = {problem.question for problem in SETS[task]()}
    for index, problem in enumerate(SETS[task]()[:60]):
        shots = few_shot_prompt(problem, index, SHOTS[task]).split("\n\n")[:-1]
        assert len(shots) == SHOTS[task]
        assert not held & {shot.removeprefix("Q: ").split("\nA:")[0] for shot in shots}
