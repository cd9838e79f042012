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


@pytest.fixture
def model(varied_autoregressive):
    return varied_autoregressive


def ending_at(model, token):
    """The same model with another end of text."""
    return dataclasses.replace(model, card=dataclasses.replace(model.card, eos_id=token))


def answer_of(generation):
    return generation.tokens[generation.prompt_length :].tolist()


def stock_generate(model, prompts, length):
    """transformers' own greedy search on a left-padded batch, on other kernels."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[model.card.eos_id] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad(), other_kernels(model.network):
        written = model.network.generate(
            tokens,
            attention_mask=real,
            do_sample=False,
            max_new_tokens=length,
            eos_token_id=model.card.eos_id,
            pad_token_id=model.card.eos_id,
        )
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


def test_greedy_stops_at_eos_as_the_stock_search_does(model):
    ids = [model.encode(prompt) for prompt in PROMPTS]
    plain = [answer_of(generation) for generation in sinkscope.generate(model, ids, length=24)]
    ending = ending_at(model, plain[0][5])
    found = [answer_of(generation) for generation in sinkscope.generate(ending, ids, length=24)]
    assert found == stock_generate(ending, ids, 24)
    assert len(found[0]) == plain[0].index(plain[0][5]) + 1


def test_greedy_equals_a_loop_without_a_cache(model):
    tokens = model.encode(PROMPTS[0])
    generation = sinkscope.generate(model, tokens, length=20)
    with torch.no_grad(), other_kernels(model.network):
        for _ in range(20):
            tokens = [*tokens, int(model.network(torch.tensor([tokens])).logits[0, -1].argmax())]
    assert generation.tokens.tolist() == tokens


def test_each_row_stops_at_its_own_eos(model):
    """A row that is done keeps its length; the others write on, undisturbed."""
    plain = [answer_of(one) for one in sinkscope.generate(model, list(PROMPTS), length=16)]
    eos = next(token for token in plain[1][2:8] if token not in plain[0][:10])
    ending = ending_at(model, eos)
    found = sinkscope.generate(ending, list(PROMPTS), length=16)
    for before, generation in zip(plain, found, strict=True):
        expected = before[: before.index(eos) + 1] if eos in before else before
        assert answer_of(generation) == expected
        assert generation.steps == len(expected)
        without_eos = expected[:-1] if expected[-1] == eos else expected
        assert generation.text == model.decode(without_eos).strip()
    assert found[1].steps < found[0].steps


def test_writing_ends_when_every_row_has_met_eos(model):
    eos = answer_of(sinkscope.generate(model, PROMPTS[2], length=16))[3]
    ending, seen = ending_at(model, eos), []
    generation = sinkscope.generate(ending, PROMPTS[2], length=16, on_step=seen.append)
    assert answer_of(generation)[-1] == eos
    assert len(seen) == generation.steps <= 4


def test_a_finished_row_writes_nothing_in_later_steps(model):
    plain = [answer_of(one) for one in sinkscope.generate(model, list(PROMPTS), length=16)]
    eos = next(token for token in plain[1][2:8] if token not in plain[0][:10])
    seen = []
    sinkscope.generate(ending_at(model, eos), list(PROMPTS), length=16, on_step=seen.append)
    done = plain[1].index(eos)
    for step in seen:
        assert (int(step.written[1, -1]) == -1) == (step.number > done)
        assert int(step.tokens[1, -1]) == (eos if step.number >= done else plain[1][step.number])
        assert int((step.written >= 0).sum()) <= 3 and not bool((step.written[:, :-1] >= 0).any())


def test_confidence_is_the_probability_of_the_token(model):
    seen = []
    prompt = model.encode(PROMPTS[0])
    sinkscope.generate(model, prompt, length=5, on_step=seen.append)
    for step in seen:
        tokens = step.tokens[0].tolist()
        expected = next_distribution(model, tokens[:-1])[tokens[-1]]
        assert_close(step.confidence[0, -1], expected, **probabilities_of(model.network, step.tokens))
        assert bool(step.confidence[0, :-1].isnan().all())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_softmax(model, temperature):
    prompt = model.encode(PROMPTS[0])
    drawn = draw(model, prompt, 1500, temperature=temperature)

    def p_value(probabilities):
        expected, counts = probabilities * len(drawn), torch.bincount(drawn, minlength=len(probabilities)).double()
        often = expected >= 5
        observed = torch.cat([counts[often], counts[~often].sum()[None]])
        return scipy.stats.chisquare(
            observed.numpy(), torch.cat([expected[often], expected[~often].sum()[None]]).numpy()
        ).pvalue

    assert p_value(next_distribution(model, prompt, temperature)) > 1e-3
    assert p_value(next_distribution(model, prompt, temperature * 1.4)) < 1e-6


@pytest.mark.parametrize("top_k", [1, 3, 10])
def test_top_k_draws_the_k_likeliest_and_no_other(model, top_k):
    prompt = model.encode(PROMPTS[0])
    drawn = draw(model, prompt, 1500, temperature=3.0, top_k=top_k)
    assert set(drawn.tolist()) == set(next_distribution(model, prompt).topk(top_k).indices.tolist())


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9])
def test_top_p_draws_the_least_set_that_reaches_p_and_no_other(model, top_p):
    prompt = model.encode(PROMPTS[0])
    ordered, order = next_distribution(model, prompt, temperature=0.8).sort(descending=True)
    size = int((ordered.cumsum(-1) < top_p).sum()) + 1
    assert size < 100
    drawn = set(draw(model, prompt, 1500, temperature=0.8, top_p=top_p).tolist())
    nucleus = order[:size].tolist()
    assert drawn <= set(nucleus)
    assert drawn >= {token for token in nucleus if float(next_distribution(model, prompt, 0.8)[token]) > 0.005}


def test_a_top_p_that_is_0_in_float32_keeps_the_likeliest_token(model):
    prompt = model.encode(PROMPTS[0])
    assert set(draw(model, prompt, 20, temperature=0.8, top_p=1e-46).tolist()) == {
        int(next_distribution(model, prompt).argmax())
    }


def test_top_p_comes_after_top_k_and_shares_are_taken_anew(model):
    """Among the three likeliest, rescaled, the nucleus of .7 is smaller than among all."""
    prompt = model.encode(PROMPTS[0])
    three = next_distribution(model, prompt, temperature=2.0).topk(3)
    size = int(((three.values / three.values.sum()).cumsum(-1) < 0.7).sum()) + 1
    assert set(draw(model, prompt, 1000, temperature=2.0, top_k=3, top_p=0.7).tolist()) == set(
        three.indices[:size].tolist()
    )
    assert size < 3


def test_top_k_beyond_the_vocabulary_and_top_p_of_one_change_nothing(model):
    prompt = model.encode(PROMPTS[0])
    plain = draw(model, prompt, 50, temperature=1.0)
    assert torch.equal(plain, draw(model, prompt, 50, temperature=1.0, top_k=10**6, top_p=1.0))


def test_seeds_reproduce(model):
    one, same, other = (
        sinkscope.generate(model, PROMPTS[0], length=12, temperature=1.0, seed=seed).tokens for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_sampling_leaves_the_global_random_state_alone(model):
    before = torch.get_rng_state()
    sinkscope.generate(model, PROMPTS[0], length=4, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_step_a_token_from_the_left(model):
    seen = []
    generation = sinkscope.generate(model, PROMPTS[0], length=6, on_step=seen.append)
    assert [step.number for step in seen] == list(range(6))
    assert [step.tokens.shape[1] for step in seen] == [generation.prompt_length + number + 1 for number in range(6)]
    assert all(torch.equal(step.tokens[0], generation.tokens[: step.tokens.shape[1]]) for step in seen)
