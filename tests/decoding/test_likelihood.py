"""The likelihood of a continuation against every way to mask it, the published numbers, and its own standard error."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from closeness import assert_close, terms_of, tolerance
from seeded_models import seeded_model
from seeded_network import MASK

import sinkscope
from sinkscope.decoding.likelihood import mask_patterns
from sinkscope.errors import CallError
from sinkscope.interventions import HidePositions, HideTopSinks, compose, parse_rule

CONTEXT = [3, 17, 42, 8, 25]
TARGET = [7, 30, 30, 12]
PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "likelihood.json").read_text())


@torch.no_grad()
def dense_scores(model, masks, guidance=0.0, target=TARGET):
    """log p [token] of the whole continuation where `masks` [token] hides it; logits of the whole canvas, one row."""
    canvas = torch.tensor([*CONTEXT, *(MASK if hidden else token for token, hidden in zip(target, masks, strict=True))])
    logits = model.network(canvas[None]).logits[0]
    if guidance:
        without = torch.where(torch.arange(len(canvas)) < len(CONTEXT), MASK, canvas)
        other = model.network(without[None]).logits[0]
        logits = other + (guidance + 1) * (logits - other)
    logits = torch.cat([logits[:1], logits[:-1]]) if model.family.shift else logits
    return logits.double().log_softmax(-1)[range(len(CONTEXT), len(canvas)), target]


def sums_of(model):
    """Arguments of `assert_close`: logits of a few tokens in fp32, with guidance up to three of them for each."""
    return {"terms": 3 * terms_of(model.network, 16) + 16, "dtype": torch.float32}


def exact_bound(model, guidance=0.0, target=TARGET):
    """The expectation that Monte Carlo estimates, over every pattern: l uniform, then the places."""
    length, total = len(target), 0.0
    for masks in itertools.product([False, True], repeat=length):
        if any(masks):
            share = 1 / length / math.comb(length, sum(masks))
            total += (
                share * length / sum(masks) * float(dense_scores(model, masks, guidance, target)[list(masks)].sum())
            )
    return total


def monte_carlo(model, seed=0, **more):
    return sinkscope.log_likelihood(model, CONTEXT, TARGET, seed=seed, **more)


@pytest.mark.parametrize(("sampler", "guidance"), [("llada", 0.0), ("dream", 0.7)])
def test_monte_carlo_is_unbiased_and_knows_its_error(sampler, guidance):
    """Of sixty estimates with few samples each."""
    model = seeded_model(sampler)
    exact = exact_bound(model, guidance)
    found = [monte_carlo(model, seed, samples=20, guidance=guidance) for seed in range(60)]
    totals = torch.tensor([one.total for one in found])
    spread = float(totals.std())
    assert abs(float(totals.mean()) - exact) < 3.5 * spread / 60**0.5
    stated = torch.tensor([one.standard_error for one in found])
    assert 0.6 * spread < float((stated**2).mean().sqrt()) < 1.5 * spread
    assert {(one.samples, one.tokens, one.greedy, one.method) for one in found} == {(20, 4, None, "monte_carlo")}


@pytest.mark.parametrize(("length", "size"), [(1, 5), (3, 16), (8, 16), (13, 1)])
def test_every_number_of_masks_is_as_likely_as_the_others(length, size):
    """The published rounding of halves to even favours some: of 8 tokens in groups of 16, the even numbers three times
    over.
    """
    drawn = torch.cat([mask_patterns(length, [size], seed) for seed in range(400)])
    shares = torch.bincount(drawn.sum(-1), minlength=length + 1)[1:] / len(drawn)
    assert float((shares - 1 / length).abs().max()) <= 4 * ((1 - 1 / length) / length / len(drawn)) ** 0.5
    assert float((drawn.float().mean(0) - (length + 1) / (2 * length)).abs().max()) < 0.1


@pytest.mark.parametrize("sampler", ["llada", "dream"])
@pytest.mark.parametrize("guidance", [0.0, 0.7])
def test_the_chain_rule_reveals_one_token_at_a_time(sampler, guidance):
    model = seeded_model(sampler)
    found = sinkscope.log_likelihood(model, CONTEXT, TARGET, method="chain_rule", guidance=guidance)
    expected = sum(
        float(dense_scores(model, [place >= number for place in range(4)], guidance)[number]) for number in range(4)
    )
    assert_close(found.total, expected, **sums_of(model))
    assert (found.standard_error, found.samples, found.tokens, found.method) == (0.0, 1, 4, "chain_rule")


def test_an_autoregressive_model_is_summed_exactly():
    model = seeded_model("autoregressive")
    found = sinkscope.log_likelihood(model, CONTEXT, TARGET)
    with torch.no_grad():
        logits = model.network(torch.tensor([[*CONTEXT, *TARGET]])).logits[0].double().log_softmax(-1)
    assert_close(found.total, float(logits[range(4, 8), TARGET].sum()), **sums_of(model))
    assert (found.standard_error, found.samples, found.method) == (0.0, 1, "exact")
    assert found == sinkscope.log_likelihood(model, CONTEXT, TARGET, method="chain_rule")


@pytest.mark.parametrize(
    "case", PUBLISHED, ids=lambda case: f"{case['method']}-{len(case['continuation'])}-{case['guidance']}"
)
def test_the_published_numbers(case):
    """Draw for draw where the length is a multiple of 16; to the last digits of a sum in fp32."""
    model = seeded_model("llada" if case["network"] == "llama" else "dream", case["weights"])
    names = ("method", "samples", "guidance", "seed")
    found = sinkscope.log_likelihood(
        model, case["context"], case["continuation"], **{name: case[name] for name in names if name in case}
    )
    assert_close(found.total, case["total"], **sums_of(model))


@pytest.mark.parametrize("sampler", ["llada", "mmada", "dream"])
@pytest.mark.parametrize("method", ["monte_carlo", "chain_rule"])
def test_the_batch_changes_nothing(sampler, method):
    model = seeded_model(sampler)
    alone, *others = (
        sinkscope.log_likelihood(model, CONTEXT, TARGET, method=method, samples=40, guidance=0.5, batch=batch)
        for batch in (1, 3, 64)
    )
    for other in others:
        assert_close(other.total, alone.total, **sums_of(model))
        assert abs(other.standard_error - alone.standard_error) <= tolerance(alone.total, **sums_of(model))


def test_texts_are_encoded_together_and_their_spaces_belong_to_the_continuation():
    model = seeded_model("llada")
    by_ids = sinkscope.log_likelihood(model, [3, 17], [42, 8], method="chain_rule")
    for context, continuation in (
        ("w3 w17", " w42 w8"),
        ("w3 w17 ", "w42 w8"),
        ([3, 17], "w42 w8"),
        ("w3 w17", [42, 8]),
    ):
        assert sinkscope.log_likelihood(model, context, continuation, method="chain_rule") == by_ids


@pytest.mark.parametrize(
    ("sampler", "arguments", "more", "message"),
    [
        ("llada", ("w3", "  "), {}, r"expected a continuation of at least one token, found '  ', which adds none"),
        ("llada", ([3, MASK], TARGET), {}, "without masks, found the mask token 60 in"),
        ("llada", ([5] * 120, [6] * 9), {}, "120 tokens of context and 9 of continuation, seeded-llada was made for"),
        ("llada", (CONTEXT, TARGET), {"method": "mc"}, "method: expected monte_carlo or chain_rule, found 'mc'"),
        ("autoregressive", (CONTEXT, TARGET), {"guidance": 1.0}, "guidance: seeded-autoregressive is autoregressive"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(sampler, arguments, more, message):
    with pytest.raises(CallError, match=message):
        sinkscope.log_likelihood(seeded_model(sampler), *arguments, **more)


def test_a_rule_of_the_step_before_is_refused():
    model, rule = seeded_model("llada"), HideTopSinks(1)
    for one in (rule, compose(HidePositions({0}), rule)):
        with one(model), pytest.raises(CallError, match="top:1 hid nothing: there was no step before; add"):
            monte_carlo(model, samples=4)
    plain = monte_carlo(model, samples=4).total
    with rule(model), pytest.raises(CallError), parse_rule("none")(model):
        monte_carlo(model, samples=4)
    assert monte_carlo(model, samples=4).total == plain


@pytest.mark.parametrize("sampler", ["llada", "autoregressive"])
@pytest.mark.parametrize("axis", ["queries", "keys"])
def test_the_context_is_the_prompt_and_the_continuation_the_answer(sampler, axis):
    model, places = seeded_model(sampler), range(len(CONTEXT), len(CONTEXT) + len(TARGET))
    found = {}
    for group, numbers in (("answer", places), ("prompt", range(len(CONTEXT)))):
        for where in (group, tuple(numbers)):
            with HideTopSinks(1, observe="current", **{axis: where})(model) as hiding:
                found[where] = monte_carlo(model, samples=8).total
            assert hiding.effect.keys_per_head > 0
        assert found[group] == found[tuple(numbers)]
    assert found["answer"] != found["prompt"]
