"""The lab's problems: worked answers are right, held-out sets are fixed and never trained on, texts survive tokens."""

import hashlib
import random
import re
from itertools import islice

import pytest

from sinkscope.lab import problems
from sinkscope.lab.problems import (
    LARGEST,
    QUESTIONS,
    held_out_code_tasks,
    held_out_problems,
    make_code_task,
    make_problem,
    read_result,
    training_code_tasks,
    training_problems,
)
from sinkscope.lab.vocabulary import BOS, build_tokenizer, question_text, render

# A change of the generators moves every published number, so it must be made on purpose.
PROBLEMS_SHA256 = "82661fa1c9f07005fe5edfb016bc1059e3ed63749735f44ef1fe350b576488bb"
TASKS_SHA256 = "4ef5b4bca214d7a67b18d81313c97fd2421617bba45e7c75335b187f436be724"
LINE = re.compile(r"(?:Then )?(\d+) ([+*-]) (\d+) = (\d+)\.")


@pytest.fixture(scope="module")
def drawn():
    rng = random.Random(7)
    return [make_problem(rng) for _ in range(3000)]


@pytest.mark.parametrize(
    ("held_out", "count", "sha256"),
    [(held_out_problems, 1319, PROBLEMS_SHA256), (held_out_code_tasks, 164, TASKS_SHA256)],
)
def test_the_held_out_sets_are_fixed(held_out, count, sha256):
    assert len({problem.question for problem in held_out()}) == len(held_out()) == count
    texts = "\n\n".join(f"{problem.question}\n{problem.worked}" for problem in held_out())
    assert hashlib.sha256(texts.encode()).hexdigest() == sha256


@pytest.mark.parametrize(
    ("held_out", "stream", "count"),
    [(held_out_problems, training_problems, 5000), (held_out_code_tasks, training_code_tasks, 1000)],
)
def test_no_held_out_question_is_trained_on(held_out, stream, count, monkeypatch):
    questions = [problem.question for problem in islice(stream(random.Random(0)), count)]
    assert {problem.question for problem in held_out()}.isdisjoint(questions)
    monkeypatch.setattr(problems, "questions_of", lambda held_out: frozenset(questions[10:11]))
    fresh = [problem.question for problem in islice(stream(random.Random(0)), count)]
    assert questions[10] not in fresh and not {problem.question for problem in held_out()}.isdisjoint(fresh)


def test_every_worked_answer_is_right(drawn):
    """One to three operations on numbers of the question and earlier results, each computed again."""
    counts = set()
    for problem in (*drawn, *held_out_problems()):
        *lines, last = problem.worked.split("\n")
        given = [int(number) for number in re.findall(r"\d+", problem.question)]
        known = list(given)
        for line in lines:
            left, symbol, right, result = LINE.fullmatch(line).groups()
            left, right, result = int(left), int(right), int(result)
            assert result == {"+": left + right, "-": left - right, "*": left * right}[symbol], line
            assert left in known and right in known and 1 <= result <= LARGEST
            known.append(result)
        assert last == f"#### {known[-1]}" and read_result(problem.worked) == problem.result == str(known[-1])
        assert all(1 <= number <= LARGEST for number in given)
        counts.add(len(lines))
    assert counts == {1, 2, 3} and {problem.template for problem in drawn} == {*QUESTIONS}


@pytest.mark.parametrize(
    ("answer", "result"),
    [("#### 3 and then #### 4", "4"), ("####12", "12"), ("#### -3", "-3"), ("#### 120 apples", "120"), ("is 12", None)],
)
def test_read_result(answer, result):
    assert read_result(answer) == result


def passes(program, task):
    """Whether a program passes a task's tests; our own programs only, no model's."""
    try:
        exec(f"{program}\n{task.result}", {})
    except Exception:
        return False
    return True


def test_the_tests_of_a_task_pass_its_worked_answer_alone():
    """Not an empty function, nor one with another number."""
    for task in held_out_code_tasks():
        head, body = task.worked.split("\n", 1)
        assert f"Write a function {head[4:-1]} that " in task.question
        assert task.result.count("assert ") >= 3 and passes(task.worked, task), task
        assert not passes(f"{head}\n    return None", task), task
        for found in re.finditer(r"\b\d+", body):
            for number in (int(found[0]) + 1, int(found[0]) - 1):
                wrong = f"{head}\n{body[: found.start()]}{number}{body[found.end() :]}"
                assert not passes(wrong, task), (wrong, task)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_a_text_comes_back_letter_by_letter_without_unknown_words(tokenizer, drawn):
    rng = random.Random(123)
    tasks = [make_code_task(rng) for _ in range(200)]
    for text in [*map(render, (*drawn[:200], *tasks, *held_out_code_tasks())), "Tom   Anna     7"]:
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text and tokenizer.unk_token_id not in ids
    assert tokenizer("é", add_special_tokens=False).input_ids == [tokenizer.unk_token_id]


def test_the_chat_template_is_the_few_shot_prompt(tokenizer, drawn):
    first, second, *_ = drawn
    messages = [
        {"role": "user", "content": first.question},
        {"role": "assistant", "content": first.worked},
        {"role": "user", "content": second.question},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{BOS}{render(first)}\n\n{question_text(second)}"
