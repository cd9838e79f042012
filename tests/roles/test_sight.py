"""`look` and `divergences`, compared with whole attention maps."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of, tolerance
from transformers import AttentionInterface, AttentionMaskInterface

from sinkscope.roles.probes import make_probes, predictions
from sinkscope.roles.removal import Removal, Sights, divergences, look

PROMPT = [5, 30, 31, 32, 40, 41, 7]


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def probe(model):
    settings = {"length": 20} if model.family.causal else {"length": 24, "steps": 24, "block": 12}
    return make_probes(model, PROMPT, canvases=3, **settings)[0]


def dense(model, probe):
    """Maps [layer, head, query, key] and values behind W_O [layer, head, key, width], by eager attention."""
    network, values = copy.deepcopy(model.network), []
    network.set_attn_implementation("eager")
    for layer in network.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, given, out: values.append(out[0]))
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))[None]
    with torch.no_grad():
        maps = network(tokens, output_attentions=True, use_cache=False).attentions
    heads, added = maps[0].shape[1], []
    for layer, value in zip(network.model.layers, values, strict=True):
        dim, weight = layer.self_attn.head_dim, layer.self_attn.o_proj.weight.detach()
        value = value.unflatten(-1, (-1, dim)).repeat_interleave(heads // (value.shape[-1] // dim), dim=-2)
        parts = weight.split(dim, dim=1)
        added.append(torch.stack([value[:, head] @ parts[head].T for head in range(heads)]))
    return torch.stack([one[0] for one in maps]).numpy(), torch.stack(added).numpy()


def test_sight_is_what_whole_maps_say(model, probe):
    maps, added = dense(model, probe)
    sight = look(model, probe)
    terms = terms_of(model.network, len(probe.tokens))
    assert_close(sight.columns, maps.sum(2), terms=terms)
    assert_close(sight.reader_rows, maps[:, :, probe.readers].mean(2), terms=terms)
    assert_close(sight.committed_rows, maps[:, :, probe.committed].mean(2), terms=terms)
    assert_close(sight.output_norms, np.linalg.norm(added, axis=-1), terms=terms)
    readers, length = np.flatnonzero(probe.readers), len(probe.tokens)
    uniform = np.array([sum(1 / (query + 1) for query in range(key, length)) for key in range(length)])
    over = maps.sum(2) - uniform * model.family.causal
    assert (sight.sinks(3.0) == (over * length / (length - 1) > 3)).all()
    for layer, head in np.ndindex(maps.shape[:2]):
        one = maps[layer, head]
        top = over[layer, head].argmax()
        taken = one[readers, top]
        assert_close(sight.evenness[layer, head], taken.mean() ** 2 / (taken**2).mean(), terms=2 * terms)
        without = np.delete(one[readers], top, axis=1)
        gained = (without / without.sum(1, keepdims=True) - without).sum(0)
        assert_close(np.delete(sight.moved[layer, head], top), gained / gained.sum(), terms=2 * terms)
        own = np.zeros(one.shape[1])
        for query in readers[readers != top]:
            own[query] = one[query, query] / (1 - one[query, top]) - one[query, query]
        assert_close(sight.itself[layer, head], own / gained.sum(), terms=2 * terms)
        assert sight.sink_token[layer, head] == 0


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_removal_in_one_head_is_that_of_a_map_without_the_keys(model, probe, zeroed):
    sight = look(model, probe)
    said = sight.log_probabilities
    keys = np.zeros(len(probe.tokens), bool)
    keys[2:-2] = True  # nearly all, so that the divergence is far above what rounding explains
    places = [(layer, head) for layer in range(3) for head in (0, 3)]
    removals = [[Removal("a", layer, head, keys, zeroed)] for layer, head in places]
    kl, kept = divergences(model, probe, sight, removals, rows=4)
    assert bool(sight.stored) is model.family.causal
    whole, _ = divergences(model, probe, dataclasses.replace(sight, stored=(), outputs=()), removals, rows=4)
    assert kl == pytest.approx(whole, rel=1e-3)

    now, first = {}, int(probe.readers.argmax()) if model.family.causal else 0

    def attention(module, query, key, value, mask, scaling=None, **others):
        repeat = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(repeat, 1).mT * scaling
        if model.family.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        here = module.layer_idx == now["layer"]
        if here and not zeroed:
            scores[:, now["head"], first:, keys] = -torch.inf
        weights = scores.softmax(-1)
        if here and zeroed:
            weights[:, now["head"], first:, keys] = 0
        return (weights @ value.repeat_interleave(repeat, 1)).transpose(1, 2), None

    AttentionInterface.register("without keys", attention)
    AttentionMaskInterface.register("without keys", lambda *given, **others: None)
    plain = dataclasses.replace(model, network=copy.deepcopy(model.network))
    plain.network.set_attn_implementation("without keys")
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))[None]
    for number, place in enumerate(places):
        now["layer"], now["head"] = place
        with torch.no_grad():
            changed = predictions(plain, tokens, torch.from_numpy(probe.readers))[0]
        expected = (said.exp() * (said - changed)).sum(-1).mean()
        allowed = tolerance(
            said, changed, terms=terms_of(model.network, len(probe.tokens))
        )  # of a sum of differences of them
        assert abs(kl[number] - float(expected)) <= allowed < kl.max() / 10
        assert kept[number] == pytest.approx(float((changed.argmax(-1) == said.argmax(-1)).float().mean()))
    assert kl.min() > 1e-6


def test_probes_are_canvases_of_the_generation(diffusion, autoregressive):
    probes = make_probes(diffusion, PROMPT, number=6, canvases=3, length=24, steps=24, block=12)
    assert [one.prompt for one in probes] == [6] * 3
    for one in probes:
        assert np.array_equal(one.readers, one.tokens == diffusion.card.mask_id)
        assert one.committed.sum() == 1 and (one.committed <= one.readers).all()
    assert [one.readers.sum() for one in probes[:3]] == [24 - one.step for one in probes[:3]]
    (probe,) = make_probes(autoregressive, PROMPT, length=12)
    first = len(PROMPT) - 1
    assert not probe.readers[:first].any() and probe.readers[first:-1].all() and not probe.readers[-1]


def test_a_canvas_is_looked_at_once_as_far_as_memory_allows(model, probe):
    see, forgets = Sights(model), Sights(model, most=0)
    assert see(probe) is see(probe) and see.room < 2**30
    assert forgets(probe) is not forgets(probe) and not forgets.kept
