"""Every way of observing, measuring and deciding, on random models, against whole maps; what was removed and hit."""

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from dense_maps import replay, top
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkscope.interventions import HideTopSinks

OBSERVE, MEASURED, DECIDE = ("previous", "current"), ("local", "hidden", "clean"), ("columns", "last_row")


LONGEST = 64
"""Positions of the canvases, at most."""


def close(found, expected, model):
    assert_close(found, expected, terms=terms_of(model.network, LONGEST))


def check(model, rule, seen, prompt_length=0):
    """Columns in force and without the hiding, of every step and layer."""
    steps = replay(model, seen.canvases, rule, prompt_length)
    assert len(steps) == len(seen.columns) >= 5
    for maps, columns in zip(steps, seen.columns, strict=True):
        assert len(columns) == len(maps.hidden) == 3
        for layer, found in columns.items():
            fresh = slice(-found.diagonal.shape[-1], None)  # behind a cache, the new query alone
            close(found.sums[:, :, 0], maps.hidden[layer][:, :, fresh].sum(-2), model)
            close(
                (found.sums if found.local is None else found.local)[:, :, 0],
                maps.local[layer][:, :, fresh].sum(-2),
                model,
            )
            close(found.last_row_in_force, maps.hidden[layer][:, :, -1], model)
    return steps


@pytest.mark.parametrize("observe", OBSERVE)
@pytest.mark.parametrize("decide", DECIDE)
def test_what_was_removed_and_hit_equals_dense(model, run, question, observe, decide):
    rule = HideTopSinks(2, observe=observe, decide=decide)
    written = {"length": 6} if model.family.causal else {"length": 8, "block": 4, "steps": 8}
    _, seen, running = run(model, rule, question, **written)
    steps = check(model, rule, seen)
    assert (seen.columns[0][0].local is None) == (observe == "previous"), (
        "step 0 is left alone by the previous-step rule"
    )
    removed = queries = hits = 0
    for step, (maps, columns) in enumerate(zip(steps, seen.columns, strict=True)):
        if step == 0 and observe == "previous":
            continue
        for layer, found in columns.items():
            fresh = slice(-found.diagonal.shape[-1], None)
            removed += (maps.local[layer] * maps.taken[layer])[:, :, fresh].sum()
            queries += found.diagonal.shape[-1] * model.card.heads
            hits += (top(maps.local[layer], rule, model.card.kv_heads)[:, :, 0] & maps.taken[layer][:, :, -1]).sum()
    close(running.effect.removed_share, (removed / queries).reshape(()), model)
    assert running.effect.hit_rate == pytest.approx(float(hits) / running.effect.ranked.sum(), abs=1e-6)
    assert running.effect.keys_per_head == 2


GROUPS = [None, None, "masked", "unmasked", "prompt", "answer", (0, 3, 4, 20), range(2, 7)]


@st.composite
def top_rules(draw):
    """Any way to limit the rule, to observe and to measure."""
    options = {"observe": OBSERVE, "measured": MEASURED, "decide": DECIDE, "scope": ("head", "kv_head", "layer")}
    given = {name: draw(st.sampled_from(values)) for name, values in options.items()}
    given |= {name: draw(st.sampled_from(GROUPS)) for name in ("keys", "queries")}
    given["effect"] = draw(st.sampled_from(["mask", "zero"]))
    given["steps"] = draw(st.sampled_from([None, (1, 2), (4,)]))
    given[draw(st.sampled_from(["layers", "heads"]))] = draw(st.sampled_from([None, "some"]))
    given = {
        name: {"layers": (0, 2), "heads": ((0, 1), (2, 3), (2, 0))}[name] if one == "some" else one
        for name, one in given.items()
    }
    return HideTopSinks(draw(st.integers(1, 3)), **given)


@settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(rule=top_rules())
def test_any_top_rule_equals_dense(model, run, question, rule):
    written = {"length": 6} if model.family.causal else {"length": 8, "block": 4, "steps": 6}
    _, seen, running = run(model, rule, question, **written)
    steps = check(model, rule, seen, len(model.encode(question)))
    removed, hidden = torch.zeros(2, model.card.layers, model.card.heads)
    for maps, columns in zip(steps, seen.columns, strict=True):
        for layer, found in columns.items():
            fresh = slice(-found.diagonal.shape[-1], None)
            removed[layer] += (maps.local[layer] * maps.taken[layer])[:, :, fresh].sum((0, 2, 3))
            hidden[layer] += maps.taken[layer][0, :, fresh].any(1).sum(-1)
    close(torch.from_numpy(running.effect.removed[0]).float(), removed, model)
    assert rule.queries is not None or running.effect.hidden[0].tolist() == hidden.tolist()
    forced = [step for step in range(len(steps)) if step in (rule.steps or range(rule.observe == "previous", 99))]
    for (layer, head), count in np.ndenumerate(running.effect.steps[0]):
        limited = layer in (rule.layers or range(3)) and (rule.heads is None or (layer, head) in rule.heads)
        assert count == len(forced) * limited


def test_each_half_of_a_guidance_batch_ranks_itself(diffusion, run, question):
    rule = HideTopSinks(1, measured="clean")
    _, seen, running = run(diffusion, rule, question, length=6, guidance=1.5)
    assert seen.canvases[0].shape[0] == 2
    check(diffusion, rule, seen)
    differ = [(seen.hidden(step, 1)[0] != seen.hidden(step, 1)[1]).any() for step in range(1, 6)]
    assert any(differ)
    own = sum(columns[layer].removed[0].sum() for columns in seen.columns[1:] for layer in columns)
    queries = sum(columns[layer].removed[0].numel() for columns in seen.columns[1:] for layer in columns)
    close(running.effect.removed_share, own / queries, diffusion)  # of the half that is written
