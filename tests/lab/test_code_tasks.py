import hashlib
import random
import re
from itertools import islice

import pytest

from sinkscope.lab import code_tasks
from sinkscope.lab.code_tasks import (
    CODE_TEMPLATES,
    HELD_OUT_COUNT,
    held_out_code_tasks,
    make_code_task,
    training_code_tasks,
)

HELD_OUT_SHA256 = "4ef5b4bca214d7a67b18d81313c97fd2421617bba45e7c75335b187f436be724"


def passes(program, task):
    """Whether a program passes a task's tests; our own programs only, no model's."""
    try:
        exec(f"{program}\n{task.result}", {})
    except Exception:
        return False
    return True


def one_off(task):
    """The worked answer with each of its numbers raised or lowered by one, one at a time."""
    head, body = task.worked.split("\n", 1)
    for found in re.finditer(r"\b\d+", body):
        for number in (int(found[0]) + 1, int(found[0]) - 1):
            yield f"{head}\n{body[: found.start()]}{number}{body[found.end() :]}"


def test_the_held_out_set_is_fixed():
    held_out = held_out_code_tasks()
    assert len(held_out) == HELD_OUT_COUNT == 164
    assert len({task.question for task in held_out}) == len(held_out)
    assert {task.template for task in held_out} == {template.name for template in CODE_TEMPLATES}
    texts = "\n\n".join(f"{task.question}\n{task.worked}" for task in held_out)
    assert hashlib.sha256(texts.encode()).hexdigest() == HELD_OUT_SHA256


def test_every_worked_answer_passes_its_own_tests():
    for task in held_out_code_tasks():
        assert task.result.count("assert ") >= 3
        assert passes(task.worked, task), task


def test_an_empty_function_fails():
    for task in held_out_code_tasks():
        assert not passes(task.worked.split("\n")[0] + "\n    return None", task), task


def test_a_worked_answer_with_another_number_fails():
    for task in held_out_code_tasks():
        for wrong in one_off(task):
            assert not passes(wrong, task), (wrong, task)


def test_another_task_s_body_fails():
    """Each template's answer, under the head of every other one with as many arguments, fails."""
    rng = random.Random(0)
    drawn = {}
    while len(drawn) < len(CODE_TEMPLATES):
        task = make_code_task(rng)
        drawn.setdefault(task.template, task)
    for task in drawn.values():
        arguments = re.search(r"\((.*?)\)", task.worked)[1].split(", ")
        for other in drawn.values():
            theirs = re.search(r"\((.*?)\)", other.worked)[1].split(", ")
            if other is not task and len(theirs) == len(arguments):
                body = other.worked.split("\n", 1)[1]
                for mine, name in zip(arguments, theirs, strict=True):
                    body = re.sub(rf"\b{name}\b", mine.upper(), body)
                assert not passes(
                    task.worked.split("\n")[0] + "\n" + body.replace(arguments[0].upper(), arguments[0]), task
                ), (task, body)


def test_the_question_names_the_function_the_tests_call():
    for task in held_out_code_tasks():
        head = re.fullmatch(r"def (\w+\(.*\)):", task.worked.split("\n")[0])[1]
        assert f"Write a function {head} that " in task.question
        assert all(line.startswith(f"assert {head.split('(')[0]}(") for line in task.result.splitlines())


def test_no_training_task_is_held_out():
    held_out = {task.question for task in held_out_code_tasks()}
    stream = [task.question for task in islice(training_code_tasks(random.Random(0)), 5000)]
    assert held_out.isdisjoint(stream)
    rng = random.Random(0)
    assert not held_out.isdisjoint(make_code_task(rng).question for _ in range(5000))


@pytest.fixture
def held_out_is(monkeypatch):
    def replace(replacement):
        monkeypatch.setattr(code_tasks, "held_out_code_tasks", lambda: replacement)
        code_tasks._held_out_questions.cache_clear()

    yield replace
    monkeypatch.undo()
    code_tasks._held_out_questions.cache_clear()


def test_a_task_put_into_the_held_out_set_leaves_the_stream(held_out_is):
    before = list(islice(training_code_tasks(random.Random(3)), 40))
    expected = [task for task in before if task.question != before[12].question]
    held_out_is((*held_out_code_tasks(), before[12]))
    assert list(islice(training_code_tasks(random.Random(3)), len(expected))) == expected
