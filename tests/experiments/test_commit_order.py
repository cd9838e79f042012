"""Confidence against a query's own attention to what is hidden; writing in a given order."""

import numpy as np
import pytest
import torch
from closeness import assert_close, probabilities_of
from commit_order import Reliance, order_of, reliance, write_in_order
from dense_maps import replay

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import HidePositions, HideTopSinks


@pytest.fixture(scope="module")
def trace(diffusion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("why") / "t"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(
            diffusion, "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:", length=6
        )
    return sinkscope.open_trace(folder)


def test_reliance_equals_dense(diffusion, trace):
    rule = HideTopSinks(2)
    found = reliance(diffusion, trace.tokens[:], rule)
    canvases = [torch.from_numpy(step[None].astype(np.int64)) for step in trace.tokens[:]]
    maps, shares = replay(diffusion, canvases, rule), probabilities_of(diffusion.network, canvases[-1])
    masked = [np.flatnonzero(step) for step in trace.masked[:]]
    assert found.step.tolist() == [step for step in range(1, 6) for _ in masked[step]]
    assert found.position.tolist() == [place for step in range(1, 6) for place in masked[step]]
    for step in range(1, 6):
        rows = found.step == step
        own = torch.stack(
            [(maps[step].local[layer] * maps[step].taken[layer]).sum(-1)[0].mean(0) for layer in range(3)]
        ).mean(0)
        assert_close(found.attention[rows], own[masked[step]], **shares)
        with torch.no_grad():
            sure = torch.softmax(diffusion.network(canvases[step]).logits[0, masked[step]], -1).amax(-1).numpy()
        assert_close(found.confidence[rows], sure, **shares)
        expected = [int((sure > one).sum() + (sure[:place] == one).sum()) for place, one in enumerate(sure)]
        assert found.order[rows].tolist() == expected


def test_only_candidates_are_ordered(diffusion, trace):
    candidates = trace.masked[:] & (np.arange(trace.tokens[:].shape[1]) % 2 == 0)
    found = reliance(diffusion, trace.tokens[:], HidePositions((3,)), candidates.astype(bool))
    assert (found.position % 2 == 0).all()
    for step in set(found.step):
        assert sorted(found.order[found.step == step]) == list(range((found.step == step).sum()))


def test_correlations_are_within_steps():
    step, order = np.repeat([1, 2], 4), np.tile(np.arange(4), 2)
    attention = np.array([0.1, 0.2, 0.3, 0.4, 0.01, 0.02, 0.03, 0.04])
    lower = 0.9 - np.arange(1, 9) / 10  # the second step lower in all, though looked at less
    given = (attention, np.full(8, 0.9), lower, order, order[::-1].copy(), np.ones(8, bool))
    found = Reliance(step, np.arange(8), *given).correlations()
    assert found["confidence"] == pytest.approx(-1) and found["order"] == pytest.approx(-1)


@pytest.mark.parametrize("rule", ["none", "top:2"])
def test_in_its_own_order_a_run_repeats_itself(diffusion, question, tmp_path, rule):
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.parse_rule(rule)(diffusion):
        expected = sinkscope.generate(diffusion, question, length=12, block=4, steps=6)
    order = order_of(sinkscope.open_trace(tmp_path / "t").written[:])
    assert [len(places) for places in order] == [2] * 6
    with sinkscope.parse_rule(rule)(diffusion) as running:
        found = write_in_order(diffusion, question, order)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert (found.text, found.steps, found.prompt_length) == (expected.text, expected.steps, expected.prompt_length)
    assert (running.effect.removed_share > 0) == (rule != "none")


def test_a_bad_order_is_refused(diffusion, question):
    first = len(diffusion.encode(question))
    for order in ([[first], [first]], [[first + 1]], [[0], [first]]):
        with pytest.raises(CallError, match=rf"order: expected every position from {first} \(behind the prompt\) on"):
            write_in_order(diffusion, question, order)
