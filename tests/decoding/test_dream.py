"""Dream's sampler against a plain loop, its quirks, and its draws against their distributions."""

from dataclasses import replace

import pytest
import torch
from chi_square import p_value
from closeness import assert_close, probabilities_of
from seeded_models import seeded_model, steps_of
from seeded_network import MASK, VOCABULARY, leaning

from sinkscope.decoding.projection import has_flaw

PROMPT = [3, 17, 42, 8, 25]
MODEL = seeded_model("dream")
SHARES = probabilities_of(MODEL.network, torch.tensor([[*PROMPT, *[MASK] * 6]]))


@torch.no_grad()
def logits_at(canvas, model=MODEL):
    """Logits [position, vocabulary] of a canvas [position], shifted: what stands at j was read at j − 1."""
    logits = model.network(canvas[None]).logits[0]
    return torch.cat([logits[:1], logits[:-1]])


def confidence_of(logits, algorithm):
    shares = logits.softmax(-1)
    best = shares.sort(-1, descending=True).values
    entropy = (shares * (shares + 1e-10).log()).sum(-1)
    return {"maskgit_plus": best[:, 0], "topk_margin": best[:, 0] - best[:, 1], "entropy": entropy}[algorithm]


def canvases_of(steps, row=0):
    return torch.stack([step.tokens[row] for step in steps])


def test_the_logits_are_read_one_place_to_the_left():
    with torch.no_grad():
        here = MODEL.network(torch.tensor([[*PROMPT, MASK]])).logits[0].argmax(-1)
    step = steps_of(MODEL, [PROMPT], length=1, steps=1, algorithm="entropy")[0]
    assert int(step.tokens[0, -1]) == int(here[-2]) != int(here[-1])


def test_with_as_many_steps_as_tokens_the_first_commits_nothing_and_the_last_two():
    steps = steps_of(MODEL, [PROMPT], length=12, steps=12, algorithm="entropy")
    assert [int((step.written >= 0).sum()) for step in steps] == [0, *[1] * 10, 2]


def test_more_steps_than_tokens_commit_now_and_then():
    commits = [
        int((step.written >= 0).sum())
        for step in steps_of(MODEL, [PROMPT], length=6, steps=20, algorithm="topk_margin")
    ]
    assert len(commits) == 20 and sum(commits) == 6
    assert commits.count(0) >= 14


@pytest.mark.parametrize("restriction", [{"top_p": 0.3}, {"top_k": 2}])
def test_restricting_the_tokens_changes_the_order_at_temperature_0(restriction):
    settings = {"length": 16, "steps": 16, "algorithm": "entropy"}
    plain, other = (steps_of(MODEL, [PROMPT], **settings, **more) for more in ({}, restriction))
    assert not torch.equal(canvases_of(plain), canvases_of(other))


def test_top_p_keeps_the_token_that_crosses_it():
    """The confidence of maskgit_plus is the share of the best token among those kept."""
    canvas = torch.tensor([*PROMPT, MASK])
    ordered = logits_at(canvas)[-1].softmax(-1).sort(descending=True).values
    for top_p in (0.2, 0.5, 0.8, 0.95):
        step = steps_of(MODEL, [PROMPT], length=1, steps=1, algorithm="maskgit_plus", top_p=top_p)[0]
        kept = int((ordered.cumsum(-1) <= top_p).sum()) + 1
        assert_close(step.confidence[0, -1], ordered[0] / ordered[:kept].sum(), **SHARES)


def test_a_predicted_mask_is_committed_and_stays_a_mask():
    with leaning(MODEL.network, {MASK: 1e4}):
        steps = steps_of(MODEL, [PROMPT], length=8, steps=8, algorithm="entropy")
    assert steps[-1].tokens[0].tolist() == [*PROMPT, *[MASK] * 8]
    assert int((steps[-1].written == MASK).sum()) == 8


def test_probabilities_that_do_not_add_up_are_not_drawn_from():
    """Quirk: under bf16 the published check refuses the draw, and the arg-max is taken in its place."""
    settings = {"length": 12, "steps": 6, "algorithm": "maskgit_plus", "seed": 4}
    with leaning(MODEL.network, {}, torch.bfloat16):
        cold, warm = (
            canvases_of(steps_of(MODEL, [PROMPT], temperature=temperature, **settings)) for temperature in (0.0, 1.0)
        )
    exact = canvases_of(steps_of(MODEL, [PROMPT], temperature=1.0, **settings))
    agree = (cold == warm).all(-1)
    assert bool(agree[0]) and not torch.equal(warm, exact)


def test_a_small_alg_temp_may_mask_what_was_written():
    """Quirk: the softmax over positions underflows, and the draw then falls on places that hold no mask."""
    steps = steps_of(MODEL, [PROMPT], length=12, steps=6, algorithm="entropy", alg_temp=0.002, seed=5)
    before = torch.tensor([*PROMPT, *[MASK] * 12])
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


ROWS = 1000


@pytest.mark.parametrize("restriction", [{}, {"top_p": 0.9, "top_k": 9}])
def test_tokens_are_drawn_from_what_the_restrictions_leave(restriction):
    """Rows have sources of their own, so a batch cannot draw what the published loop draws; its distribution is the
    same.
    """
    step = steps_of(
        MODEL, [PROMPT] * ROWS, length=1, steps=1, temperature=2.5, algorithm="maskgit_plus", **restriction
    )[0]
    shares, order = (logits_at(torch.tensor([*PROMPT, MASK]))[-1] / 2.5).softmax(-1).sort(descending=True)
    kept = min(
        int((shares.cumsum(-1) <= restriction.get("top_p", 1.0)).sum()) + 1, restriction.get("top_k", VOCABULARY)
    )
    shares = torch.zeros(VOCABULARY).index_copy(0, order[:kept], shares[:kept])
    assert p_value(step.tokens[:, -1], shares) > 1e-3
    if not restriction:
        assert p_value(step.tokens[:, -1], shares**0.7) < 1e-6


def test_alg_temp_draws_positions_from_the_softmax_of_the_confidences():
    length = 8
    step = steps_of(MODEL, [PROMPT] * ROWS, length=length, steps=6, algorithm="entropy", alg_temp=0.5)[0]
    assert (step.written >= 0).sum(-1).tolist() == [1] * ROWS
    places = (step.written[:, len(PROMPT) :] >= 0).int().argmax(-1)
    confidence = confidence_of(logits_at(torch.tensor([*PROMPT, *[MASK] * length])), "entropy")[len(PROMPT) :]
    assert p_value(places, (confidence / 0.5).softmax(-1)) > 1e-3
    assert p_value(places, (confidence / 0.25).softmax(-1)) < 1e-6
