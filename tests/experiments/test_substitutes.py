"""`experiments/substitutes.py`: it measures what a plain loop finds, and its page is written from its results."""

import numpy as np
import pytest
import substitutes
import torch
from closeness import assert_close

import sinkscope
from sinkscope.lab.canvases import NullTask, draw_nulls


@pytest.fixture(scope="module")
def causal():
    return sinkscope.load("lab-nulls-autoregressive-2-0")


@pytest.fixture(scope="module")
def task(causal):
    canvases = draw_nulls(NullTask(2, "triggered", rows=4), -1, 0)
    return substitutes.make_task(causal, canvases, 18), canvases


def test_a_diffusion_model_predicts_what_is_masked():
    model = sinkscope.load("lab-nulls-diffusion-2-0")
    canvases = draw_nulls(NullTask(2, "placed", rows=4), -1, 0)
    found = substitutes.make_task(model, canvases, 18)
    masked = found.tokens == model.card.mask_id
    assert (
        torch.equal(found.targets[masked], canvases.tokens[masked])
        and (found.targets[~masked] == substitutes.NO_TARGET).all()
    )
    assert not masked[:, :18].any() and 0.3 < masked[:, 18:].float().mean() < 0.7


def test_the_cost_is_that_of_a_dense_softmax_without_the_key(causal, task):
    """One layer by hand: scores, the two nulls at minus infinity for the queries that are judged, the loss."""
    found, _ = task
    hidden = substitutes.profile(causal, found, [2])["hidden"][0]["cost"]["all"]["mean"]
    network = causal.network
    attention = network.model.layers[0].self_attn
    null = found.kinds["nulls"]

    def loss(take):
        with torch.no_grad():
            hook = attention.register_forward_hook(
                lambda module, given, named, output: (dense(module, named, take), None), with_kwargs=True
            )
            try:
                logits = network(found.tokens).logits.double().log_softmax(-1)
            finally:
                hook.remove()
        rows = []
        for row, targets in enumerate(found.targets.tolist()):
            judged = [query for query, target in enumerate(targets) if target != substitutes.NO_TARGET]
            rows.append(np.mean([-float(logits[row, query, targets[query]]) for query in judged]))
        return np.array(rows)

    def dense(module, named, take):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        states = named["hidden_states"]
        query, key, value = (
            projection(states)[:, None] for projection in (module.q_proj, module.k_proj, module.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *named["position_embeddings"])
        scores = query @ key.mT / query.shape[-1] ** 0.5
        width = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(width, width).triu(1).bool(), -torch.inf)
        if take:
            judged = (torch.arange(width) >= 18)[:, None] & null[:, None, None]
            scores = scores.masked_fill(judged, -torch.inf)
        return module.o_proj((scores.softmax(-1) @ value)[:, 0])

    assert_close(hidden, float(np.mean(loss(True) - loss(False))), terms=4096, dtype=torch.float32)
    assert hidden > 1


def test_the_knee_is_where_the_interval_leaves_the_threshold(causal, task, monkeypatch):
    costs = {1: 0.05, 2: 0.2, 3: 0.3}

    def measure(model, given, rule):
        hidden = 0 if rule == "none" else int(rule.partition(":")[2].partition("@")[0])
        values = np.full(8, costs.get(hidden, 0.0) if rule.startswith("top") else 0.0) + np.linspace(-0.01, 0.01, 8)
        return {name: values for name in ("all", "known", "others")}, {"largest": np.zeros((1, 1))}

    monkeypatch.setattr(substitutes, "measure", measure)
    assert substitutes.profile(causal, task[0], [1, 2, 3])["knee"] == 2
    costs[2] = 0.05
    assert substitutes.profile(causal, task[0], [1, 2, 3])["knee"] == 3
    assert substitutes.profile(causal, task[0], [1])["knee"] is None
