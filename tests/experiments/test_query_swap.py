"""The swap of queries between masked and written positions, against rotations and maps computed densely."""

import numpy as np
import pytest
import torch
from query_swap import KINDS, follows, input_changes, looked, maps_of, measure, nearest, on_sinks, split_heads, swaps
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from sinkscope.roles.probes import make_probes

LAYER = 1


@pytest.fixture
def probe(diffusion):
    return make_probes(diffusion, [5, 30, 31, 32, 40, 41, 7], canvases=2, length=24, steps=24, block=12)[0]


@torch.no_grad()
def dense(model, tokens):
    """Queries of one layer before rotation [head, position, dim], and its map [head, query, key] by eager attention."""
    network, raw = model.network, []
    attention = network.model.layers[LAYER].self_attn
    hook = attention.q_proj.register_forward_hook(lambda module, given, out: raw.append(out[0]))
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    maps = network(tokens[None], output_attentions=True, use_cache=False).attentions[LAYER][0]
    network.set_attn_implementation(before)
    hook.remove()
    return raw[0].unflatten(-1, (-1, attention.head_dim)).transpose(0, 1), maps


def test_a_swapped_query_is_that_of_the_projection_rotated_elsewhere(diffusion, probe):
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))
    raw, maps = dense(diffusion, tokens)
    queries, keys = looked(diffusion, tokens, probe)[LAYER]
    torch.testing.assert_close(maps_of(queries, keys), maps, atol=1e-5, rtol=1e-4)
    masked = (tokens == diffusion.card.mask_id).nonzero()[:, 0]
    written = (tokens != diffusion.card.mask_id).nonzero()[:, 0]
    at = masked[1::2]
    donor = torch.tensor([min(written.tolist(), key=lambda one: (abs(one - mine), one)) for mine in at.tolist()])
    null = torch.tensor([min((abs(o - m), o) for o in masked.tolist() if o != m)[1] for m in at.tolist()])
    assert torch.equal(nearest(at, written), donor) and torch.equal(nearest(at, masked), null)
    found = swaps(diffusion, queries, at, masked, written, np.random.default_rng(0))
    contents = {"before": at, "content of nearest": donor, "position of nearest": at, "donor of nearest": donor}
    contents |= {"null content of nearest": null, "null position of nearest": at}
    places = {"before": at, "content of nearest": at, "position of nearest": donor, "donor of nearest": donor}
    places |= {"null content of nearest": at, "null position of nearest": null}
    for arm, content in contents.items():
        rotated = apply_rotary_pos_emb(
            raw[None, :, content], raw[None, :, content], *diffusion.network.model.rotary_emb(raw, places[arm][None])
        )[0]
        torch.testing.assert_close(found[arm], rotated[0], atol=1e-5, rtol=1e-4)


def test_sinks_and_shares_are_those_of_the_maps():
    maps = torch.zeros(3, 4, 5)
    maps[0, :2, 1], maps[0, 2:, 3] = 0.5, 0.4  # split
    maps[1, :, 2] = 0.5  # one sink
    maps[2, :2, 1], maps[2, 2:, 3] = 0.5, 0.01  # no sink of the written queries
    sinks, strong, heads = split_heads(maps, {"masked": torch.tensor([0, 1]), "written": torch.tensor([2, 3])})
    assert strong.tolist() == [True, True, False] and heads.tolist() == [True, False, False]
    assert sinks["masked"].tolist() == [1, 2, 1] and sinks["written"].tolist()[:2] == [3, 2]
    shares = on_sinks(maps[:, :3], sinks, heads)
    assert shares[0].tolist() == pytest.approx([1 / 3, 0.4 / 3])


def test_a_canvas_gives_the_shares_of_its_maps(diffusion, probe):
    found = measure(diffusion, probe, np.random.default_rng(0))
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))
    _, maps = dense(diffusion, tokens)
    masked = tokens == diffusion.card.mask_id
    places = {"masked": masked.nonzero()[:, 0], "written": (~masked).nonzero()[:, 0]}
    tops = {kind: maps[:, places[kind][::2]].mean(1).max(-1) for kind in KINDS}
    split = [
        head
        for head in range(len(maps))
        if min(tops[kind].values[head] for kind in KINDS) >= 0.05
        and tops["masked"].indices[head] != tops["written"].indices[head]
    ]
    assert split
    for kind in KINDS:
        for sink in KINDS:
            at = [maps[head, places[kind][1::2], tops[sink].indices[head]].mean() for head in split]
            assert found[f"layer {LAYER}|{kind}|before|{sink}"] == pytest.approx(float(np.mean(at)), abs=1e-5)


def test_changed_inputs_differ_in_one_token():
    tokens, masked = torch.arange(10, 30), torch.arange(20) >= 12
    tokens[masked] = 4
    places = {"masked": masked.nonzero()[:, 0], "written": (~masked).nonzero()[:, 0]}
    for name, kind, changed, at in input_changes(tokens, places, places, 4, np.random.default_rng(0)):
        assert (changed != tokens).nonzero()[:, 0].tolist() == [at] and bool(masked[at]) == (kind == "masked")
        assert (changed[at] == 4) == (name == "input masked")


def test_a_query_that_looks_like_the_donor_follows_it_all_the_way():
    rows = {"masked|before": (0.5, 0.1), "masked|donor of any": (0.1, 0.3), "masked|content of any": (0.1, 0.3)}
    rows |= {
        "masked|position of any": (0.5, 0.1),
        "written|before": (0.0, 0.4),
        "masked|null content of any": (0.4, 0.15),
    }
    rows |= {
        "masked|donor of nearest": (0.1, 0.3),
        "masked|input written": (0.2, 0.2),
        "masked|input written, before": (0.5, 0.1),
    }
    flat = {f"{name}|{kind}": one for name, pair in rows.items() for kind, one in zip(KINDS, pair, strict=True)}
    found = follows([flat] * 5)
    assert found["masked|content of any"] == pytest.approx([1, 1, 1]) and found["masked|position of any"][0] == 0
    assert found["masked|null content of any"][0] == pytest.approx(0.15 / 0.6)
    assert found["masked|input written"][0] == pytest.approx(0.4 / 0.6)
    assert not any(name.startswith("written") for name in found)
