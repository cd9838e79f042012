"""Transplants, compared with whole attention maps, and on networks whose truth is known."""

import copy
import dataclasses

import _networks_by_hand
import numpy as np
import pytest
import torch
from _networks_by_hand import KINDS, SETTINGS, SIZES
from closeness import terms_of, tolerance
from transformers import AttentionInterface, AttentionMaskInterface

from sinkscope.errors import CallError
from sinkscope.roles import Estimate, Rules, transplant, transplant_on
from sinkscope.roles.grafts import (
    Graft,
    Transplanter,
    canvas_of,
    grafts_of,
    stream_divergences,
    stream_grafts_of,
    turned,
)
from sinkscope.roles.probes import make_probes, predictions
from sinkscope.roles.removal import divergences, look
from sinkscope.roles.transplants import what_it_stores

PROMPT = [5, 30, 31, 32, 40, 41, 7]
EASY = Rules(excess=0.2)
STORED = {"idle": "nothing", "broadcast": "constant", "carrier": "constant"}


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def probe(model):
    settings = {"length": 20} if model.family.causal else {"length": 24, "steps": 24, "block": 12}
    return make_probes(model, PROMPT, canvases=3, **settings)[0]


@pytest.mark.parametrize(("kind", "size"), [(kind, SIZES[at % len(SIZES)]) for at, kind in enumerate(KINDS)])
def test_what_a_sink_stores_in_a_network_set_by_hand_is_the_truth(tmp_path, kind, size):
    layers, heads = size
    model, place, prompts = _networks_by_hand.make(tmp_path, kind, layers, heads, 0)
    found = transplant(model, prompts, by="head", **SETTINGS)
    truth = "content" if KINDS[kind].value == "letter" else STORED[kind.partition(" ")[0]]
    assert found.stores == {"model": truth, f"{place[0]}.{place[1]}": truth}
    assert found.of("model", "text").sink.low > 0.005  # every head that looks somewhere passes on a text's letter
    assert found.of("model", "step").sink.high < 0.005  # the same token, some steps later
    assert (found.of("model", "mean").sink.low > 0.005) == (truth == "content")
    assert found.of("model", "prompt", "value and key").sink.mean == pytest.approx(
        found.of("model", "prompt").sink.mean, abs=1e-4
    )  # the key says nothing but that it is a source
    streams = {donor: found.of("model", donor, "stream").sink for donor in ("prompt", "step", "mean", "text")}
    assert streams["step"].high < 0.005 and (streams["prompt"].low > 0.005) == (truth == "content")
    assert (streams["text"].low > 0.005) == ("substitute" not in kind)  # with text's stream it is no source any more
    assert [one.heads for one in found.rows] == [1.0] * len(found.rows)
    assert found.taken["model"][0].mean > 0.05


@pytest.mark.parametrize("with_key", [False, True])
def test_a_transplant_in_one_head_is_that_of_a_map_with_other_contents(model, probe, with_key):
    sight, rng, dim = (
        look(model, probe),
        torch.Generator().manual_seed(0),
        model.network.model.layers[0].self_attn.head_dim,
    )
    said, positions = sight.log_probabilities, np.array([0, 2, 4])
    new_value, new_key = torch.randn(2, 3, dim, generator=rng) * 3
    places = [(layer, head) for layer in range(3) for head in (0, 4)]
    sets = [[Graft(*place, positions, new_value, new_key if with_key else None)] for place in places]
    kl, kept = divergences(model, probe, sight, sets, rows=4, by=Transplanter)
    now, first = {}, int(probe.readers.argmax()) if model.family.causal else 0

    def attention(module, query, key, value, mask, scaling=None, **others):
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
        later = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).triu(1) & model.family.causal
        outputs = [(query @ key.mT * scaling).masked_fill(later, -torch.inf).softmax(-1) @ value]
        if module.layer_idx == now["layer"]:
            key[:, now["head"], positions] = new_key if with_key else key[:, now["head"], positions]
            value[:, now["head"], positions] = new_value
        outputs += [(query @ key.mT * scaling).masked_fill(later, -torch.inf).softmax(-1) @ value]
        return torch.cat([outputs[0][:, :, :first], outputs[1][:, :, first:]], 2).transpose(1, 2), None

    AttentionInterface.register("other contents", attention)
    AttentionMaskInterface.register("other contents", lambda *given, **others: None)
    plain = dataclasses.replace(model, network=copy.deepcopy(model.network))
    plain.network.set_attn_implementation("other contents")
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))[None]
    for number, place in enumerate(places):
        now["layer"], now["head"] = place
        with torch.no_grad():
            changed = predictions(plain, tokens, torch.from_numpy(probe.readers))[0]
        expected = (said.exp() * (said - changed)).sum(-1).mean()
        assert abs(kl[number] - float(expected)) <= tolerance(
            said, changed, terms=terms_of(model.network, tokens.numel())
        )
    assert kl.min() > 1e-5 and kept.shape == (6,)


def test_the_content_of_the_same_canvas_changes_nothing_and_a_key_turned_back_is_the_key(model, probe):
    mine = canvas_of(model, probe, EASY, 0)
    assert mine.chosen
    for with_key in (False, True):
        grafts = grafts_of(model, mine, "prompt", with_key, [mine], np.random.default_rng(0))
        sinks = [one for at, one in grafts.items() if at[2] == "sink"]
        kl, kept = divergences(model, probe, look(model, probe), [sinks], by=Transplanter)
        assert kl[0] < 1e-6 and kept[0] == 1
    streams = stream_grafts_of(mine, "prompt", [mine])
    assert {one[2] for one in streams} == {"sink", "plain"}
    kl, kept = stream_divergences(model, probe, look(model, probe), [[*streams.values()]])
    assert kl[0] < 1e-6 and kept[0] == pytest.approx(1)


def test_a_stream_transplant_is_another_token_at_the_first_layer_and_another_output_of_the_layer_below(model, probe):
    mine, sight = canvas_of(model, probe, EASY, 0), look(model, probe)
    places, readers = np.array([2, int(np.flatnonzero(probe.readers)[-2])]), torch.from_numpy(probe.readers)
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))[None]
    other, rng = tokens.clone(), torch.Generator().manual_seed(2)
    other[0, places] = torch.tensor([33, 44])
    drawn = torch.randn(2, model.card.hidden_size, generator=rng) * 3
    sets = [[Graft(0, -1, places, model.network.model.embed_tokens(other[0, places]).detach())]]
    sets += [[Graft(2, -1, places[:1], drawn[:1]), Graft(2, -1, places[1:], drawn[1:])]]
    kl, kept = stream_divergences(model, probe, sight, sets, rows=1 + model.family.causal)

    def put(block, given, output):
        output[:, places] = drawn
        return output

    with torch.no_grad():
        changed = [predictions(model, other, readers)[0]]
        handle = model.network.model.layers[1].register_forward_hook(put)
        changed.append(predictions(model, tokens, readers)[0])
        handle.remove()
    left = ~np.isin(np.flatnonzero(probe.readers), places)
    assert left.sum() == probe.readers.sum() - 1
    for number, one in enumerate(changed):
        said = sight.log_probabilities[left]
        expected = (said.exp() * (said - one[left])).sum(-1).mean()
        assert kl[number] == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
        assert kept[number] == pytest.approx(float((said.argmax(-1) == one[left].argmax(-1)).float().mean()))
    assert min(kl) > 1e-4
    embedded = model.network.model.embed_tokens(tokens)[0]
    torch.testing.assert_close(mine.streams[0], embedded.detach(), atol=1e-6, rtol=0)


def test_a_turned_query_scores_as_if_it_stood_elsewhere(model):
    """Against the rotation of transformers at the new position."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    dim, rotary = model.network.model.layers[0].self_attn.head_dim, model.network.model.rotary_emb
    raw = torch.randn(1, 2, 5, dim, generator=torch.Generator().manual_seed(1))
    places = torch.tensor([3, 0, 9, 9, 20]), torch.tensor([1, 7, 9, 30, 0])
    before, after = (apply_rotary_pos_emb(raw, raw, *rotary(raw, one[None]))[0] for one in places)
    torch.testing.assert_close(turned(model, before, places[1] - places[0]), after, atol=1e-5, rtol=1e-5)


def test_each_donor_gives_the_content_that_it_says(diffusion):
    probes = make_probes(diffusion, PROMPT, canvases=3, length=24, steps=24, block=12)
    mine, *others = (canvas_of(diffusion, one, EASY, 0) for one in probes)
    at = next(one for one in mine.chosen if one[2] == "sink" and all(one in other.chosen for other in others))
    layer, head, _ = at

    def graft(donor, with_key=False):
        return grafts_of(diffusion, mine, donor, with_key, others, np.random.default_rng(0))[at]

    stored = [one.values[layer][head, one.chosen[at]] for one in (mine, *others)]
    assert torch.equal(graft("step").value, stored[1]) and not graft("zero").value.any()
    assert torch.allclose(graft("mean").value, (stored[1] + stored[2]) / 2)
    free = mine.values[layer][head, mine.free[layer, head]]
    assert (free == graft("text").value).all(-1).any() and not mine.free[layer, head, mine.chosen[at]].any()
    key = turned(diffusion, graft("step", True).key, torch.from_numpy(-mine.chosen[at]))
    torch.testing.assert_close(key, others[0].keys[layer][head, others[0].chosen[at]], atol=1e-5, rtol=1e-5)


def test_masks_get_from_masks_and_written_tokens_from_written_ones(diffusion):
    probes = make_probes(diffusion, PROMPT, canvases=3, length=24, steps=24, block=12)
    mine, *others = (canvas_of(diffusion, one, EASY, 0) for one in probes)
    seen = set()

    def kinds_with(value, pool, rows):
        """Masked or not, wherever a canvas has this content."""
        at = [(one, np.flatnonzero((rows(one) == value).all(-1))) for one in pool]
        return {bool(one.masked[position]) for one, found in at for position in found.tolist()}

    for donor, pool in (("step", others), ("text", [mine])):
        grafts = grafts_of(diffusion, mine, donor, False, others, np.random.default_rng(0))
        for (layer, head, kind), one in grafts.items():
            for position, value in zip(one.positions.tolist(), one.value, strict=True):
                seen.add((kind, donor, bool(mine.masked[position])))
                found = kinds_with(value, pool, lambda one, of=(layer, head): one.content(*of, slice(None))[1])
                assert found == {bool(mine.masked[position])}
        for (layer, place, kind), one in stream_grafts_of(mine, donor, others).items():
            found = kinds_with(one.value[0], pool, lambda one, layer=layer: one.streams[layer])
            assert found == {bool(mine.masked[place])}
            assert kind == "sink" or mine.free[layer, :, place].all()
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("zero", "prompt", "stores"),
    [
        ((0.0, 0.001), (0.0, 0.001), "nothing"),
        ((0.01, 0.1), (0.0, 0.001), "constant"),
        ((0.01, 0.1), (0.01, 0.02), "content"),
        ((0.0, 0.1), (0.0, 0.001), "open"),
        ((0.01, 0.1), (0.0, 0.01), "open"),
        ((None, None), (0.0, 0.001), "open"),
    ],
)
def test_the_rules(zero, prompt, stores):
    assert what_it_stores(Estimate(0.0, *zero), Estimate(0.0, *prompt), 0.005) == stores


def test_finished_prompts_are_not_measured_again_and_rows_are_means_over_prompts(diffusion, tmp_path, monkeypatch):
    settings = {"length": 16, "steps": 16, "block": 16}
    probes = [make_probes(diffusion, [*PROMPT, 20 + at], at, 2, **settings) for at in range(5)]
    found = transplant_on(diffusion, probes, by="head", rules=EASY, out=tmp_path)
    seen = [[canvas_of(diffusion, one, EASY, at) for one in of_prompt] for at, of_prompt in enumerate(probes)]
    changes = []
    for at, (first, second) in enumerate(seen):
        for mine, other, number in ((first, second, 0), (second, first, 1)):
            grafts = grafts_of(diffusion, mine, "step", False, [other], np.random.default_rng([0, at, number, 2]))
            sinks = [one for place, one in grafts.items() if place[2] == "sink"]
            kl = divergences(diffusion, mine.probe, look(diffusion, mine.probe), [sinks], by=Transplanter)[0]
            changes.append(float(kl[0]))
    row = found.of("model", "step")
    assert row.sink.mean == pytest.approx(np.mean(changes), rel=1e-3) and row.sink.low < row.sink.mean < row.sink.high
    assert row.sink_over_plain.mean == pytest.approx(row.sink.mean - row.plain.mean)
    monkeypatch.setattr("sinkscope.roles.transplants.divergences", None)
    assert transplant_on(diffusion, probes, by="head", rules=EASY, out=tmp_path).as_dict() == found.as_dict()
    with pytest.raises(TypeError):
        transplant_on(diffusion, probes, by="layer", rules=EASY, out=tmp_path)


def test_too_few_prompts_are_refused(diffusion):
    with pytest.raises(CallError):
        transplant(diffusion, [PROMPT] * 4)
