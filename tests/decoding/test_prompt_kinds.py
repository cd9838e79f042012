import dataclasses

import numpy as np
import pytest
import torch
from seeded_models import seeded_model

import sinkscope
from sinkscope.errors import CallError, ModelError, SinkscopeError

LENGTH = 6
QUESTION = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SHORT = "Q: Write a function f(x) that returns x plus 3.\nA:"


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return request.getfixturevalue(f"varied_{request.param}")


def test_every_kind_of_prompt_says_the_same(model):
    ids = model.encode(QUESTION)
    expected = sinkscope.generate(model, QUESTION, length=LENGTH)
    array = np.array(ids)
    for prompt in (ids, tuple(ids), torch.tensor(ids), torch.tensor(ids, dtype=torch.int32), array, list(array)):
        found = sinkscope.generate(model, prompt, length=LENGTH)
        assert torch.equal(found.tokens, expected.tokens), type(prompt)
        assert found.text == expected.text


def test_every_kind_of_list_says_the_same(model):
    ids = [model.encode(text) for text in (QUESTION, SHORT)]
    expected = sinkscope.generate(model, [QUESTION, SHORT], length=LENGTH)
    assert [generation.prompt_length for generation in expected] == [len(one) for one in ids]
    for prompts in (
        ids,
        tuple(ids),
        [torch.tensor(one) for one in ids],
        [QUESTION, ids[1]],
        [np.array(one) for one in ids],
    ):
        found = sinkscope.generate(model, prompts, length=LENGTH)
        assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]


def test_a_list_of_one_gives_a_list_of_one(model):
    one = sinkscope.generate(model, [QUESTION], length=LENGTH)
    assert isinstance(one, list) and len(one) == 1
    assert torch.equal(one[0].tokens, sinkscope.generate(model, QUESTION, length=LENGTH).tokens)


def test_a_matrix_of_ids_is_a_list_of_prompts(model):
    matrix = torch.tensor([[0, 50, 51], [0, 60, 61]])
    found = sinkscope.generate(model, matrix, length=LENGTH)
    alone = [sinkscope.generate(model, row, length=LENGTH) for row in matrix]
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in alone]


def test_a_generation_holds_prompt_and_answer(model):
    generation = sinkscope.generate(model, QUESTION, length=LENGTH)
    prompt = model.encode(QUESTION)
    assert generation.tokens.dtype == torch.int64
    assert generation.tokens[: generation.prompt_length].tolist() == prompt
    answer = generation.tokens[len(prompt) :].tolist()
    assert len(answer) == generation.steps == LENGTH
    assert generation.text == model.tokenizer.decode(answer, skip_special_tokens=True).strip()


def test_the_text_ends_before_the_first_eos(model):
    plain = sinkscope.generate(model, QUESTION, length=LENGTH)
    answer = plain.tokens[plain.prompt_length :].tolist()
    ending = dataclasses.replace(model, card=dataclasses.replace(model.card, eos_id=answer[3]))
    first = answer.index(answer[3])
    assert sinkscope.generate(ending, QUESTION, length=LENGTH).text == model.decode(answer[:first]).strip()


def test_messages_go_through_the_chat_template(model):
    question = QUESTION.removeprefix("Q: ").removesuffix("\nA:")
    found = sinkscope.generate(model, messages=[{"role": "user", "content": question}], length=LENGTH)
    assert torch.equal(found.tokens, sinkscope.generate(model, QUESTION, length=LENGTH).tokens)
    several = sinkscope.generate(model, messages=[[{"role": "user", "content": question}]] * 2, length=LENGTH)
    assert [one.tokens.tolist() for one in several] == [found.tokens.tolist()] * 2


REFUSED = [
    ("", "at least one token, found an empty one"),
    ([], "at least one prompt, found none"),
    ([QUESTION, ""], "at least one token, found an empty one"),
    ("Q: Tom has 7 xylophones and 2 zebras.", "does not know 'xylophones', 'zebras'"),
    ([5, 10**6], "token ids lie in 0…"),
]


@pytest.mark.parametrize(("prompt", "fragment"), REFUSED, ids=lambda value: repr(value)[:40])
def test_a_prompt_that_does_not_fit_is_refused(model, prompt, fragment):
    with pytest.raises(CallError) as caught:
        sinkscope.generate(model, prompt, length=LENGTH)
    assert fragment in str(caught.value)


def test_a_mask_in_the_prompt_is_refused(diffusion, autoregressive):
    for prompt in ("Q: Tom <|mask|>", [0, 40, 2], [QUESTION, [0, 40, 2]]):
        with pytest.raises(CallError, match="holds the mask token 2 at position"):
            sinkscope.generate(diffusion, prompt, length=LENGTH)
    assert sinkscope.generate(autoregressive, [0, 40, 2], length=LENGTH).prompt_length == 3


def test_a_mask_in_a_message_is_refused(diffusion):
    with pytest.raises(CallError, match="holds the mask token 2"):
        sinkscope.generate(diffusion, messages=[{"role": "user", "content": "Tom <|mask|>"}], length=LENGTH)


def test_messages_need_a_chat_template(diffusion, diffusion_folder):
    model = sinkscope.load(str(diffusion_folder))
    model.tokenizer.chat_template = None
    with pytest.raises(ModelError, match="has no chat template; pass the prompt as text"):
        sinkscope.generate(model, messages=[{"role": "user", "content": "Tom has 7 apples."}])


@pytest.mark.parametrize(
    "given", [{}, {"prompt": QUESTION, "messages": [{"role": "user", "content": "Tom"}]}], ids=["neither", "both"]
)
def test_prompt_or_messages(model, given):
    with pytest.raises(CallError, match="either prompt or messages"):
        sinkscope.generate(model, **given, length=LENGTH)


def test_a_canvas_beyond_the_maximum_is_refused(model):
    prompt = model.encode(QUESTION)
    fitting = 256 - len(prompt)
    with pytest.raises(CallError) as caught:
        sinkscope.generate(model, [SHORT, prompt], length=fitting + 1)
    for fragment in ("the canvas does not fit", str(len(prompt)), str(fitting + 1), "257", "256", model.card.name):
        assert fragment in str(caught.value)


def test_a_canvas_of_exactly_the_maximum_is_written(varied_diffusion):
    prompt = varied_diffusion.encode(QUESTION)
    assert len(sinkscope.generate(varied_diffusion, prompt, length=256 - len(prompt), steps=1).tokens) == 256


def test_nothing_runs_before_everything_is_checked(diffusion, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("the network ran")

    monkeypatch.setattr(diffusion.network.model, "forward", fail)
    for prompt, settings in (
        ("", {}),
        (QUESTION, {"length": 7, "block": 2}),
        ([QUESTION, [-1]], {}),
        (QUESTION, {"length": 1000}),
    ):
        with pytest.raises(SinkscopeError):
            sinkscope.generate(diffusion, prompt, **settings)


def test_on_step_sees_every_step(varied_diffusion):
    seen = []
    generation = sinkscope.generate(varied_diffusion, QUESTION, length=8, steps=4, block=4, on_step=seen.append)
    assert [step.number for step in seen] == [0, 1, 2, 3]
    assert generation.steps == 4
    assert torch.equal(seen[-1].tokens[0], generation.tokens)


@pytest.mark.parametrize("name", ["llada", "autoregressive"])
def test_a_prompt_of_one_token_may_be_that_of_the_beginning(name):
    model = seeded_model(name)
    before, model.tokenizer.bos_token = model.tokenizer.bos_token, "w3"
    try:
        assert sinkscope.generate(model, [3], length=4).prompt_length == 1
    finally:
        model.tokenizer.bos_token = before
