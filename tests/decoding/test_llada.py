"""The samplers of LLaDA, MMaDA and Dream where the published fixtures do not reach: ties, other block orders, flaws."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from other_kernels import other_kernels
from seeded_models import seeded_model, steps_of
from seeded_network import MASK

from sinkscope.decoding import LLaDASettings, make_batch
from sinkscope.decoding.blocks import llada_steps
from sinkscope.decoding.projection import has_flaw


@torch.no_grad()
def dense_llada(model, prompt, *, length, steps, block, leftward=False, precision=torch.float32):
    """The published loop at temperature 0, on other kernels: the canvas after every step."""
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
            candidate = logits.argmax(-1)
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


def test_a_small_alg_temp_may_mask_what_was_written():
    """Quirk: the softmax over positions underflows, and the draw then falls on places that hold no mask."""
    prompt = [3, 17, 42, 8, 25]
    steps = steps_of(seeded_model("dream"), [prompt], length=12, steps=6, algorithm="entropy", alg_temp=0.002, seed=5)
    before = torch.tensor([*prompt, *[MASK] * 12])
    lost = 0
    for step in steps:
        chosen = step.written[0] >= 0
        lost += int((chosen & (before != MASK)).sum())
        assert bool((step.written[0][chosen & (before != MASK)] == MASK).all())
        before = step.tokens[0]
    assert lost > 0
    assert not any(bool(has_flaw(step, MASK)) for step in steps)
    kept = next(step for step in steps if bool((step.written[0] != MASK)[step.written[0] >= 0].any()))
    assert bool(has_flaw(replace(kept, confidence=torch.full_like(kept.confidence, torch.nan)), MASK))
