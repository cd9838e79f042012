"""The lab's problems: worked answers are right, held-out sets are fixed and never trained on, texts survive tokens."""

import hashlib
import random
from itertools import islice

import pytest

from sinkscope.lab import problems
from sinkscope.lab.canvases import CanvasMix, NullTask, draw_canvases, draw_nulls
from sinkscope.lab.problems import (
    held_out,
    make_code_task,
    make_problem,
    question_text,
    read_result,
    render,
    training_problems,
)
from sinkscope.lab.prompts import BOS, build_tokenizer
from sinkscope.lab.recipes import SHORT

# A change of the generators moves every published number, so it must be made on purpose.
PROBLEMS_SHA256 = "93ab41683f40952a7ba366fe3c039ac64cf69f7d2b5e58e169541810530742a2"
TASKS_SHA256 = "b5faca1dd16e7e0fa41f5eb8452c2cb8f5165d97a69909ce9420a131feea06f5"


@pytest.fixture(scope="module")
def drawn():
    rng = random.Random(7)
    return [make_problem(rng) for _ in range(200)]


@pytest.mark.parametrize(
    ("task", "count", "sha256"), [("lab-arith", 1319, PROBLEMS_SHA256), ("lab-code", 164, TASKS_SHA256)]
)
def test_the_held_out_sets_are_fixed(task, count, sha256):
    assert len({problem.question for problem in held_out(task)}) == len(held_out(task)) == count
    texts = "\n\n".join(f"{one.question}\n{one.worked}\n{one.result}" for one in held_out(task))
    assert hashlib.sha256(texts.encode()).hexdigest() == sha256


@pytest.mark.parametrize(("task", "count"), [("lab-arith", 5000), ("lab-code", 1000)])
def test_no_held_out_question_is_trained_on(task, count, monkeypatch):
    drawn = list(islice(training_problems(random.Random(0), task), count))
    questions = [problem.question for problem in drawn]
    assert {problem.question for problem in held_out(task)}.isdisjoint(questions)
    monkeypatch.setattr(problems, "held_out", lambda task: drawn[10:11])
    fresh = [problem.question for problem in islice(training_problems(random.Random(0), task), count)]
    assert questions[10] not in fresh and not {problem.question for problem in held_out(task)}.isdisjoint(fresh)


@pytest.mark.parametrize(
    ("answer", "result"),
    [("#### 3 and then #### 4", "4"), ("####12", "12"), ("#### -3", "-3"), ("#### 120 apples", "120"), ("is 12", None)],
)
def test_read_result(answer, result):
    assert read_result(answer) == result


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def test_a_text_comes_back_letter_by_letter_without_unknown_words(tokenizer, drawn):
    rng = random.Random(123)
    tasks = [make_code_task(rng) for _ in range(200)]
    for text in [*map(render, (*drawn[:200], *tasks, *held_out("lab-code"))), "Tom   Anna     7"]:
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


def test_the_streams_are_fixed(tokenizer):
    """A change moves every training, so it must be made on purpose."""
    drawn = [draw_canvases(mix, tokenizer, 0, update) for update in range(6) for mix in (CanvasMix(), SHORT)]
    nulls = [draw_nulls(NullTask(2, answers), 0, 3) for answers in ("triggered", "placed")]
    for batches, digest in ((drawn, "be09f59a3dee81f2"), (nulls, "6139be39dfc542e2")):
        content = b"".join(one.numpy().tobytes() for batch in batches for one in (batch.tokens, batch.answers))
        assert hashlib.sha256(content).hexdigest()[:16] == digest
