import dataclasses

import pytest
import scipy.stats
import torch
from closeness import assert_close, probabilities_of
from other_kernels import other_kernels

import sinkscope
from sinkscope.decoding import AutoregressiveSettings, make_batch
from sinkscope.decoding.autoregressive import autoregressive_steps

PROMPTS = (
    "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:",
    "Q: Write a function f(x) that returns x plus 3.\nA:",
    "Tom",
)


def p_value(drawn, shares):
    """p-value of drawn classes, int64 [draw], against shares [class]; classes expected under five times are one."""
    expected = shares.double() / shares.double().sum() * len(drawn)
    counts, often = torch.bincount(drawn, minlength=len(shares)).double(), expected >= 5
    assert int(often.sum()) >= 4, "too sharp a distribution to test a sampler on"
    observed, wanted = (torch.cat([one[often], one[~often].sum()[None]]).tolist() for one in (counts, expected))
    if wanted[-1] == 0:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    return scipy.stats.chisquare(observed, wanted).pvalue


@pytest.fixture
def model(varied_autoregressive):
    return varied_autoregressive


def answer_of(generation):
    return generation.tokens[generation.prompt_length :].tolist()


def stock_generate(model, prompts, length):
    """transformers' own greedy search on a left-padded batch, on other kernels."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[model.card.eos_id] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad(), other_kernels(model.network):
        ends = dict.fromkeys(("eos_token_id", "pad_token_id"), model.card.eos_id)
        how = {"attention_mask": real, "do_sample": False, "max_new_tokens": length, **ends}
        written = model.network.generate(tokens, **how)
    answers = written[:, width:].tolist()
    return [
        answer[: answer.index(model.card.eos_id) + 1] if model.card.eos_id in answer else answer for answer in answers
    ]


@torch.no_grad()
def next_distribution(model, prompt, temperature=1.0):
    return torch.softmax(model.network(torch.tensor([prompt])).logits[0, -1].double() / temperature, -1)


def draw(model, prompt, rows, **settings):
    """The first token of many rows of one prompt."""
    resolved = AutoregressiveSettings(length=1, **settings)
    step = next(autoregressive_steps(model, make_batch(model, [prompt] * rows, [None] * rows, 1), resolved))
    return step.tokens[:, -1]


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "three"])
def test_greedy_is_the_stock_greedy_search(model, prompts):
    ids = [model.encode(prompt) for prompt in prompts]
    answers = [answer_of(generation) for generation in sinkscope.generate(model, ids, length=24)]
    assert answers == stock_generate(model, ids, 24)
    assert len({token for answer in answers for token in answer}) >= 8


def test_each_row_stops_at_its_own_eos(model):
    """A row that is done keeps its length; the others write on, undisturbed."""
    plain = [answer_of(one) for one in sinkscope.generate(model, list(PROMPTS), length=16)]
    eos = next(token for token in plain[1][2:8] if token not in plain[0][:10])
    ending = dataclasses.replace(model, card=dataclasses.replace(model.card, eos_id=eos))
    found = sinkscope.generate(ending, list(PROMPTS), length=16)
    for before, generation in zip(plain, found, strict=True):
        expected = before[: before.index(eos) + 1] if eos in before else before
        assert answer_of(generation) == expected
        assert generation.steps == len(expected)
        without_eos = expected[:-1] if expected[-1] == eos else expected
        assert generation.text == model.decode(without_eos).strip()
    assert found[1].steps < found[0].steps


def test_a_step_is_that_of_a_call_without_a_cache(model):
    seen = []
    prompt = model.encode(PROMPTS[0])
    sinkscope.generate(model, prompt, length=5, on_step=seen.append)
    for step in seen:
        tokens = step.tokens[0].tolist()
        expected = next_distribution(model, tokens[:-1])
        assert int(expected.argmax()) == tokens[-1]
        assert_close(step.confidence[0, -1], expected[tokens[-1]], **probabilities_of(model.network, step.tokens))
        assert bool(step.confidence[0, :-1].isnan().all())


def test_tokens_are_drawn_from_the_softmax(model):
    prompt = model.encode(PROMPTS[0])
    drawn = draw(model, prompt, 1000, temperature=2.0)
    assert p_value(drawn, next_distribution(model, prompt, 2.0)) > 1e-3
    assert p_value(drawn, next_distribution(model, prompt, 2.8)) < 1e-6


@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_top_p_draws_the_least_set_that_reaches_p_and_no_other(model, top_p):
    prompt = model.encode(PROMPTS[0])
    ordered, order = next_distribution(model, prompt, temperature=0.8).sort(descending=True)
    size = int((ordered.cumsum(-1) < top_p).sum()) + 1
    assert size < 100
    drawn = set(draw(model, prompt, 1000, temperature=0.8, top_p=top_p).tolist())
    nucleus = order[:size].tolist()
    assert drawn <= set(nucleus)
    assert drawn >= {token for token in nucleus if float(next_distribution(model, prompt, 0.8)[token]) > 0.005}


def test_seeds_reproduce(model):
    one, same, other = (
        sinkscope.generate(model, PROMPTS[0], length=12, temperature=1.0, seed=seed).tokens for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
