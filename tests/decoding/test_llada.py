"""LLaDA's and MMaDA's samplers against a plain loop: the whole canvas through the projection, one row, every step."""

import dataclasses
import types
from contextlib import contextmanager

import pytest
import torch
from chi_square import p_value
from closeness import assert_close, probabilities_of
from other_kernels import other_kernels
from seeded_models import seeded_model, steps_of
from seeded_network import leaning

from sinkscope.decoding import LLaDASettings, make_batch
from sinkscope.decoding.blocks import llada_steps

EOT = 57  # an ordinary word that a test declares to be the end of a turn


@torch.no_grad()
def dense_llada(
    model,
    prompt,
    *,
    length,
    steps,
    block,
    logits_eos_inf=False,
    no_confidence=(),
    leftward=False,
    precision=torch.float32,
):
    """The published loop at temperature 0, on other kernels: the canvas after every step.

    ``no_confidence``: tokens that lose their confidence once the candidates are chosen.
    """
    mask = model.card.mask_id
    canvas = torch.tensor([*prompt, *[mask] * length])
    blocks, canvases = length // block, []
    for number in reversed(range(blocks)) if leftward else range(blocks):
        begin, end = len(prompt) + number * block, len(prompt) + (number + 1) * block
        masks = int((canvas[begin:end] == mask).sum())
        per_block = steps // blocks
        for step in range(per_block):
            with other_kernels(model.network):
                logits = model.network(canvas[None]).logits[0]
            if logits_eos_inf:
                logits[:, model.card.eos_id] = -torch.inf
            candidate = logits.argmax(-1)
            for token in no_confidence:
                logits[:, token] = -torch.inf
            confidence = logits.to(precision).softmax(-1)[torch.arange(len(canvas)), candidate]
            confidence[:begin] = -torch.inf if leftward else confidence[:begin]
            confidence[end:] = confidence[end:] if leftward else -torch.inf
            confidence[canvas != mask] = -torch.inf
            chosen = confidence.topk(masks // per_block + (step < masks % per_block)).indices
            canvas = canvas.clone()
            canvas[chosen] = candidate[chosen]
            canvases.append(canvas)
    return torch.stack(canvases)


def written_by(model, prompts, **settings):
    """All steps of the sampler for prompts given as ids."""
    resolved = LLaDASettings(**settings)
    return list(llada_steps(model, make_batch(model, prompts, [None] * len(prompts), resolved.length), resolved))


def canvases_of(steps, row=0):
    return torch.stack([step.tokens[row] for step in steps])


def biased(model, **tokens):
    """Adds to the logits of some tokens, wherever the head is applied: ``biased(model, mask=9.0)``."""
    ids = {"mask": model.card.mask_id, "eos": model.card.eos_id, "eot": EOT}
    return leaning(model.network, {ids[name]: amount for name, amount in tokens.items()})


@pytest.fixture
def diffusion(varied_diffusion):
    return varied_diffusion


@pytest.fixture
def prompt(diffusion, question):
    return diffusion.encode(question)


def test_blocks_from_right_to_left_are_the_plain_loop_mirrored(diffusion, prompt):
    settings = {"length": 32, "steps": 12, "block": 8}
    steps = written_by(diffusion, [prompt], block_order="right_to_left", **settings)
    assert torch.equal(canvases_of(steps), dense_llada(diffusion, prompt, leftward=True, **settings))
    first = [int((step.written[0, len(prompt) :] >= 0).nonzero()[0]) // settings["block"] for step in steps]
    assert first == sorted(first, reverse=True)
    assert (first[0], first[-1]) == (settings["length"] // settings["block"] - 1, 0)


def test_confidences_that_tie_break_as_in_the_plain_loop(diffusion, prompt):
    """A saturated network, as trained ones are: many confidences are exactly 1."""
    settings = {"length": 48, "steps": 16, "block": 24}
    with scaled(diffusion, 50):
        steps = written_by(diffusion, [prompt], **settings)
        dense = dense_llada(diffusion, prompt, **settings)
    first = steps[0].confidence[0]
    assert int((first == first.nan_to_num(0).max()).sum()) > 3  # more ties than places
    assert torch.equal(canvases_of(steps), dense)


def test_eos_is_never_predicted_under_logits_eos_inf(diffusion, prompt):
    settings = {"length": 24, "steps": 12, "block": 12}
    with biased(diffusion, eos=100.0):
        plain = canvases_of(written_by(diffusion, [prompt], **settings))
        without = canvases_of(written_by(diffusion, [prompt], logits_eos_inf=True, **settings))
        assert torch.equal(without, dense_llada(diffusion, prompt, logits_eos_inf=True, **settings))
    assert bool((plain[-1, len(prompt) :] == diffusion.card.eos_id).all())
    assert not bool((without[-1, len(prompt) :] == diffusion.card.eos_id).any())


def with_end_of_turn(model):
    tokenizer = types.SimpleNamespace(get_vocab=lambda: {"<|eot_id|>": EOT}, convert_tokens_to_ids=lambda token: EOT)
    return dataclasses.replace(model, tokenizer=tokenizer)


# How much must be added to EOS and EoT for each to be predicted at some places of this random network, and not at
# others.
LIKELY = {"eos": 14.0, "eot": 14.0}


def test_at_temperature_0_eos_and_eot_lose_their_confidence(diffusion, prompt):
    """Quirk of the published code: a chained assignment hits one and the same tensor."""
    model, settings = with_end_of_turn(diffusion), {"length": 24, "steps": 12, "block": 24}
    lost = (model.card.eos_id, EOT)
    with biased(model, **LIKELY):
        plain = dense_llada(model, prompt, **settings)
        late = canvases_of(written_by(model, [prompt], confidence_eos_eot_inf=True, **settings))
        assert torch.equal(late, dense_llada(model, prompt, no_confidence=lost, **settings))
    assert all(bool((plain[-1, len(prompt) :] == token).any()) for token in lost)
    assert not torch.equal(late, plain)


def test_above_temperature_0_only_eot_loses_its_confidence(diffusion, prompt):
    """The same quirk with noise too weak to change a candidate."""
    model, settings = with_end_of_turn(diffusion), {"length": 24, "steps": 12, "block": 24}
    with biased(model, **LIKELY):
        late = canvases_of(written_by(model, [prompt], confidence_eos_eot_inf=True, temperature=1e-6, **settings))
        assert torch.equal(late, dense_llada(model, prompt, no_confidence=(EOT,), **settings))
        assert not torch.equal(late, dense_llada(model, prompt, no_confidence=(EOT, model.card.eos_id), **settings))


def test_random_remasking_commits_the_arg_max_at_random_places(diffusion, prompt):
    one, same, other = (
        written_by(diffusion, [prompt], length=16, steps=16, block=16, remasking="random", seed=seed)
        for seed in (0, 0, 1)
    )
    orders = [[int((step.written[0] >= 0).nonzero()) for step in run] for run in (one, same, other)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    canvas = torch.tensor([*prompt, *[diffusion.card.mask_id] * 16])
    for step in one:
        committed = step.written[0] >= 0
        with torch.no_grad():
            candidate = diffusion.network(canvas[None]).logits[0].argmax(-1)
        assert torch.equal(step.written[0][committed], candidate[committed])
        canvas = step.tokens[0]


def softmax_at(model, prompt, temperature):
    """Distribution of the first token to be written."""
    with torch.no_grad():
        logits = model.network(torch.tensor([[*prompt, model.card.mask_id]])).logits[0, -1]
    return torch.softmax(logits.double() / temperature, -1)


@contextmanager
def scaled(model, factor):
    """A more or less certain network."""
    head = model.network.lm_head.weight
    with torch.no_grad():
        kept = head.clone()
        head.mul_(factor)
        try:
            yield
        finally:
            head.copy_(kept)


def test_tokens_are_drawn_from_the_softmax(diffusion, prompt, temperature=0.5):
    with scaled(diffusion, 0.5):
        step = written_by(diffusion, [prompt] * 2000, length=1, steps=1, block=1, temperature=temperature)[0]
        right, wrong = (softmax_at(diffusion, prompt, at) for at in (temperature, temperature * 1.5))
    drawn = step.tokens[:, -1]
    assert p_value(drawn, right) > 1e-3
    assert p_value(drawn, wrong) < 1e-6


def test_confidence_is_read_without_the_noise(diffusion, prompt):
    with scaled(diffusion, 0.5):
        step = written_by(diffusion, [prompt] * 50, length=1, steps=1, block=1, temperature=1.0)[0]
        expected = softmax_at(diffusion, prompt, 1.0)
    assert_close(
        step.confidence[:, -1], expected[step.tokens[:, -1]], **probabilities_of(diffusion.network, step.tokens[:1])
    )
    assert bool(step.confidence[:, :-1].isnan().all())


def test_a_model_that_writes_only_masks_finishes_with_masks(diffusion, prompt):
    settings = {"length": 12, "steps": 12, "block": 4}
    with biased(diffusion, mask=1e4):
        steps = written_by(diffusion, [prompt], **settings)
        assert torch.equal(canvases_of(steps), dense_llada(diffusion, prompt, **settings))
    assert len(steps) == 12
    assert steps[-1].tokens[0].tolist() == [*prompt, *[diffusion.card.mask_id] * 12]
    assert all(int((step.written == diffusion.card.mask_id).sum()) == 1 for step in steps)


def test_a_model_that_writes_some_masks_goes_on_with_them_in_the_next_block(diffusion, prompt):
    """A committed mask stays a candidate: an unfinished block is still written on in later ones."""
    settings = {"length": 24, "steps": 8, "block": 6}
    with biased(diffusion, mask=8.5):
        steps = written_by(diffusion, [prompt], **settings)
        assert torch.equal(canvases_of(steps), dense_llada(diffusion, prompt, **settings))
    masks = (steps[-1].tokens == diffusion.card.mask_id).sum()
    assert 0 < int(masks) < 24
    late = [step for step in steps if bool((step.written[0, : len(prompt) + 6 * (step.number // 2)] >= 0).any())]
    assert late, "no step wrote into an earlier block: another bias is needed"


def test_mmada_tells_confidences_apart_that_tie_in_fp32():
    """A saturated network: in fp32 many confidences are exactly 1, in float64 they differ."""
    prompt, settings = [3, 17, 42, 8, 25], {"length": 24, "steps": 12, "block": 12}
    model, llada = seeded_model("mmada"), seeded_model("llada")
    with scaled(model, 12), scaled(llada, 12):
        steps, other = (steps_of(one, [prompt], **settings) for one in (model, llada))
        dense = dense_llada(model, prompt, precision=torch.float64, **settings)
    assert int((other[0].confidence[0] == 1).sum()) > 2
    assert torch.equal(canvases_of(steps), dense)
    assert not torch.equal(dense, canvases_of(other))
