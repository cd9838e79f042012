import itertools
import random

import pytest

from sinkscope.lab.problems import held_out_code_tasks, held_out_problems, training_code_tasks, training_problems
from sinkscope.lab.prompts import SHOTS, few_shot_prompt, problem_prompt, problem_prompts
from sinkscope.lab.vocabulary import build_tokenizer, question_text, render

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


def test_shots_differ_from_problem_to_problem_and_not_from_time_to_time():
    problem = held_out_problems()[0]
    assert few_shot_prompt(problem, 0, 2) == few_shot_prompt(problem, 0, 2)
    assert few_shot_prompt(problem, 0, 2).split("\n\n")[0] != few_shot_prompt(problem, 1, 2).split("\n\n")[0]
    assert few_shot_prompt(problem, 0, 5).startswith(few_shot_prompt(problem, 0, 2).rsplit("\n\n", 1)[0])
    assert few_shot_prompt(problem, 0, 0) == question_text(problem)


def test_lengths_are_those_the_docstring_gives():
    tokenizer = build_tokenizer()
    lengths = {task: sorted(len(tokenizer(row["prompt"]).input_ids) for row in problem_prompts(task)) for task in SETS}
    arith, code = lengths["lab-arith"], lengths["lab-code"]
    assert (arith[0], arith[len(arith) // 2], arith[-1]) == (196, 262, 325)
    assert sum(200 <= length <= 320 for length in arith) / 1319 == pytest.approx(0.998, abs=5e-4)
    assert (code[0], code[len(code) // 2], code[-1]) == (247, 275, 306)


def test_rows_for_the_command():
    rows = problem_prompts("lab-arith", 3, 1)
    problems = held_out_problems()
    assert rows == [{"prompt": few_shot_prompt(problems[i], i, 1), "answer": problems[i].result} for i in range(3)]
    assert problem_prompts("lab-arith", 2) == [problem_prompt("lab-arith", i, SHOTS["lab-arith"]) for i in range(2)]
    assert len(problem_prompts("lab-code")) == 164
