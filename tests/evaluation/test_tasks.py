import pytest

from sinkscope.evaluation.tasks import TASKS, score_number, score_program
from sinkscope.lab.problems import held_out

PROBLEM = next(problem for problem in held_out("lab-arith") if problem.result == "7")
CODE = next(task for task in held_out("lab-code") if task.template == "add")


def test_numbers():
    for text, correct, read in (
        ("3 + 4 = 7 pens.\n#### 7", True, "7"),
        ("#### 7\n\nQ: Tom?\nA: #### 8", True, "7"),
        ("#### 8\n\nQ: Tom?\nA: #### 7", False, "8"),
        ("#### 17", False, "17"),
        ("7", False, None),
    ):
        score = score_number(PROBLEM, text)
        assert (score.correct, score.read) == (correct, read)


def test_programs():
    for text, correct in (
        (CODE.worked + "\n\nQ: Write a function f(", True),
        (CODE.worked.replace("+", "-"), False),
        (CODE.worked + "\nimport sys\nsys.exit(0)", False),
    ):
        score = score_program(CODE, text)
        assert (score.correct, score.read) == (correct, text.split("\n\nQ:")[0])


@pytest.mark.parametrize("name", TASKS)
def test_every_worked_answer_scores(name):
    task = TASKS[name]
    for problem in task.problems()[:: 1 if name == "lab-arith" else 20]:
        assert task.score(problem, problem.worked).correct
        assert task.gold(problem) == problem.result


def test_what_the_tasks_are():
    assert [(task.name, len(task.problems()), task.shots, task.runs_programs) for task in TASKS.values()] == [
        ("lab-arith", 1319, 5, False),
        ("lab-code", 164, 7, True),
        ("lab-sums", 303, 0, False),
    ]
