import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.errors import CallError

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


def test_messages_go_through_the_chat_template(model):
    question = QUESTION.removeprefix("Q: ").removesuffix("\nA:")
    found = sinkscope.generate(model, messages=[{"role": "user", "content": question}], length=LENGTH)
    assert torch.equal(found.tokens, sinkscope.generate(model, QUESTION, length=LENGTH).tokens)
    several = sinkscope.generate(model, messages=[[{"role": "user", "content": question}]] * 2, length=LENGTH)
    assert [one.tokens.tolist() for one in several] == [found.tokens.tolist()] * 2


@pytest.mark.parametrize(
    ("prompt", "fragment"),
    [
        ([QUESTION, ""], "at least one token .* found an empty one"),
        ("Q: Tom has 7 xylophones and 2 zebras.", "does not know 'xylophones', 'zebras'"),
        ([5, 10**6], "token ids lie in 0…"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_prompt_that_does_not_fit_is_refused(model, prompt, fragment):
    with pytest.raises(CallError, match=fragment):
        sinkscope.generate(model, prompt, length=LENGTH)


def test_a_mask_in_the_prompt_is_refused(diffusion, autoregressive):
    for prompt in ("Q: Tom <|mask|>", [0, 40, 2], [QUESTION, [0, 40, 2]]):
        with pytest.raises(CallError, match="without masks, found the mask token 2 in"):
            sinkscope.generate(diffusion, prompt, length=LENGTH)
    assert sinkscope.generate(autoregressive, [0, 40, 2], length=LENGTH).prompt_length == 3


def test_a_canvas_beyond_the_maximum_is_refused(model):
    prompt = model.encode(QUESTION)
    with pytest.raises(CallError, match=f"the canvas does not fit: a prompt of {len(prompt)} tokens .* make 257"):
        sinkscope.generate(model, [SHORT, prompt], length=257 - len(prompt))
