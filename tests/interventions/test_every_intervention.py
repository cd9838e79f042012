"""What holds for every rule and control: it bites, it idles, it leaves no trace, a batch is its rows, it says what it
took.
"""

import dataclasses
import math
import re

import pytest
import torch
from closeness import assert_close, terms_of
from leaves_no_trace import check_leaves_no_trace
from other_kernels import other_kernels

import sinkscope
from sinkscope.interventions import (
    Composed,
    HidePositions,
    HideSinksAbove,
    HideTopSinks,
    KeepWindow,
    MassMatchedKeys,
    NextRanks,
    PersistentRandomKeys,
    RandomKeys,
    RowMatchedKeys,
    SameClassKeys,
    compose,
    known_rules,
    parse_rule,
)

RULES = {
    "top": HideTopSinks(2),
    "top, current": HideTopSinks(2, observe="current", decide="last_row", effect="zero"),
    "top, clean": HideTopSinks(2, measured="clean", scope="layer", heads={(0, 1), (2, 3), (2, 0)}),
    "top, keys and queries": HideTopSinks(2, measured="hidden", keys="prompt", queries="answer"),
    "above": HideSinksAbove(0.3),
    "positions": HidePositions((0, 3)),
    "window": KeepWindow(1, 5),
    "random": RandomKeys(2, seed=1),
    "mass": MassMatchedKeys(2, seed=1),
    "rowmass": RowMatchedKeys(2, seed=1),
    "persistent": PersistentRandomKeys(2, seed=1),
    "ranks": NextRanks(2),
    "class": SameClassKeys(2, seed=1),
    "composed": compose(HideTopSinks(1), HidePositions((4,))),
}
tried = {type(rule) for rule in RULES.values()}
others = {word: kind for word, kind in known_rules().items() if kind not in tried and not kind.takes_own}
RULES |= {word: parse_rule(re.sub("[A-Z]+", "2", kind.rule)) for word, kind in others.items()}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def confidences(model, rule, prompts, **settings):
    """Everything a sampler saw of the network, and what it wrote."""
    seen = []
    with rule(model) as running:
        generations = sinkscope.generate(model, prompts, on_step=lambda step: seen.append(step.confidence), **settings)
    return generations, seen, running.effect


@each_rule
def test_it_bites_and_begins_anew_with_each_generation(model, settings, question, rule):
    _, plain, _ = confidences(model, compose(), question, **settings)
    first, found, effect = confidences(model, rule, question, **settings)
    last = min(len(plain), len(found)) - 1
    assert last >= 3
    assert any(
        (one.nan_to_num() != other.nan_to_num()).any()
        for one, other in zip(plain, found, strict=False)
        if one.shape == other.shape
    )
    assert effect.removed_share > 1e-4 and effect.keys_per_head > 0
    with rule(model) as running:
        sinkscope.generate(model, question, **settings)
        again = sinkscope.generate(model, question, **settings)
    assert torch.equal(first.tokens, again.tokens)
    assert running.effect.removed.shape[0] == 2
    assert running.effect.removed_share == pytest.approx(effect.removed_share)
    assert running.effect.of(-1).removed_share == pytest.approx(effect.removed_share)


IDLE = [
    *(parse_rule(f"{word}:0") for word, kind in known_rules().items() if kind.rule == f"{word}:K"),
    HideSinksAbove(math.inf),
    HidePositions((400,)),
    KeepWindow(0, 400),
    HideTopSinks(3, heads=()),
    KeepWindow(1, 2, steps=(900,)),
]


def test_at_strength_zero_it_is_bit_identical_to_none(model, settings, question):
    plain, expected, _ = confidences(model, compose(), question, **settings)
    for rule in IDLE:
        written, found, effect = confidences(model, rule, question, **settings)
        assert torch.equal(plain.tokens, written.tokens), rule
        pairs = zip(expected, found, strict=True)
        assert all(torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in pairs), rule
        assert effect.removed_share == 0 and effect.hit_rate is None and effect.keys_per_head == 0, rule


@each_rule
def test_it_leaves_no_trace(model, rule):
    ids = torch.randint(5, 300, (2, 11), generator=torch.Generator().manual_seed(0))
    check_leaves_no_trace(model.network, lambda: for_a_call_by_itself(rule)(model), ids)


def for_a_call_by_itself(rule):
    """It has no step before, commits nothing, and all of it is the prompt."""
    if isinstance(rule, Composed):
        return compose(*map(for_a_call_by_itself, rule.parts))
    more = {"observe": "current"} if rule.waits else {}
    if rule.queries is not None or isinstance(rule, RowMatchedKeys):
        more |= {"keys": None, "queries": range(3)}
    return dataclasses.replace(rule, **more)


@each_rule
@pytest.mark.parametrize("kind", ["diffusion with guidance and threshold", "autoregressive"])
def test_a_row_of_a_batch_equals_the_prompt_alone(request, question, short, rule, kind):
    model = request.getfixturevalue(kind.split()[0])
    more = {"length": 6} | ({"guidance": 1.0} if "guidance" in kind else {})
    if "threshold" in kind:  # a row finishes its blocks in steps of its own
        more |= {"threshold": 0.05, "block": 3}
    together, _, both = confidences(model, rule, [question, short], **more)
    for row, prompt in enumerate([question, short]):
        with other_kernels(model.network):
            alone, _, own = confidences(model, rule, prompt, **more)
        assert torch.equal(together[row].tokens, alone.tokens)
        mine = both.of(row)
        assert_close(mine.removed_share, own.removed_share, terms=terms_of(model.network, 64), dtype=torch.float32)
        assert (mine.hit_rate, mine.keys_per_head) == (own.hit_rate, own.keys_per_head)
        assert (mine.steps == own.steps).all() and (mine.queries == own.queries).all()
