"""What hiding did, as `Effect` counts it."""

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.interventions import HidePositions, HideTopSinks, KeepWindow, compose


def test_the_effect_of_one_prompt_and_of_heads(diffusion, question, short):
    with HideTopSinks(1, layers=(1, 2))(diffusion) as running:
        sinkscope.generate(diffusion, [question, short], length=6)
    effect = running.effect
    assert effect.removed.shape == (2, 3, 5) and effect.hit_rate_by_head.shape == (3, 5)
    shares = effect.removed_share_by_head
    assert np.isnan(shares[0]).all() and shares[1:].mean() == pytest.approx(effect.removed_share)
    assert effect.sentence("top:1").startswith(f"top:1 took away {effect.removed_share:.1%} of the attention")
    assert effect.of(0).removed.sum() + effect.of(1).removed.sum() == pytest.approx(effect.removed.sum())


def test_where_the_removed_attention_went(diffusion, question, short):
    rule, effects = HidePositions([3]), []
    for prompts in ([question, short], [question], [short]):
        with rule(diffusion) as running:
            sinkscope.generate(diffusion, prompts, length=6)
        effects.append(running.effect)
    together, *alone = effects
    for row, own in enumerate(alone):
        found = together.of(row).received[..., : own.received.shape[2]]
        np.testing.assert_allclose(found, own.received, atol=1e-3 * own.queries.sum() ** 0.5)
        without, hidden = own.received[0]
        assert without.sum() == pytest.approx(hidden.sum()) == pytest.approx(own.queries.sum())
        assert hidden[3] == 0 and without[3] == pytest.approx(own.removed.sum())
        place, before, after = own.moved
        assert after - before == pytest.approx((hidden - without).max() / own.queries.sum()) and place != 3
        assert str(own) == f"Effect on 1 prompt: {own.sentence('the rule')}"
        assert f"position {place} gained most: {after:.1%}, with the hidden keys back {before:.1%}" in str(own)


def test_rules_together_are_judged_by_what_they_hide_together(diffusion):
    """The same keys, by one rule, by two, or by two that both name some of them."""
    ways = (
        HidePositions([3, 4]),
        compose(HidePositions([3]), HidePositions([4])),
        compose(HidePositions([3, 4]), HidePositions([4])),
    )
    effects = []
    for rule in ways:
        with rule(diffusion) as hiding:
            sinkscope.generate(diffusion, "Q: Tom has 7 apples.\nA:", length=8)
        effects.append(hiding.effect)
    for effect in effects[1:]:
        for name in ("hits", "ranked", "hidden"):
            np.testing.assert_array_equal(getattr(effect, name), getattr(effects[0], name))
    assert 0 < effects[0].hits.sum() < effects[0].ranked.sum() == effects[0].hidden.sum()


@pytest.mark.parametrize("queries", [None, "masked", "prompt"])
def test_keys_of_a_window_are_counted_over_the_queries_of_the_rule(diffusion, question, queries):
    canvases, counts = [], []
    with KeepWindow(1, 2, queries=queries)(diffusion) as running:
        sinkscope.generate(
            diffusion, question, length=8, steps=4, block=8, on_step=lambda step: canvases.append(step.tokens[0])
        )
    prompt, mask = len(diffusion.encode(question)), diffusion.card.mask_id
    canvas = torch.tensor([*diffusion.encode(question), *[mask] * 8])
    place = torch.arange(len(canvas))
    for written in canvases:
        lost = ((place[:, None] - place).abs() >= 2) & (place >= 1)
        chosen = {None: place >= 0, "masked": canvas == mask, "prompt": place < prompt}[queries]
        counts.append(float(lost.sum(-1)[chosen].float().mean()))
        canvas = written
    assert running.effect.keys_per_head == pytest.approx(sum(counts) / len(counts))


def test_the_hit_rate_leaves_out_what_each_query_loses_for_itself(diffusion, question):
    """The keys of a window are no key's rank in a head; those that all queries lose are counted as without it."""
    rule, window = HideTopSinks(1, observe="current"), KeepWindow(1, 2)
    effects = []
    for one in (window, rule, compose(rule, window)):
        with one(diffusion) as running:
            sinkscope.generate(diffusion, question, length=4, block=4)
        effects.append(running.effect)
    alone, plain, both = effects
    assert alone.hit_rate is None and both.hit_rate == plain.hit_rate == 1
    assert (both.ranked == plain.ranked).all() and both.keys_per_head > plain.keys_per_head
