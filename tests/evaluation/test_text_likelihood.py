"""Nats behind a context: what the rules see, what they hide from, and that a killed run goes on."""

import json

import pytest
import torch

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation.text_likelihood import nats_behind, read_texts, text_likelihood
from sinkscope.interventions import HidePositions, HideTopSinks

TEXTS = ["Tom has 12 apples . Kim has 4 apples . Tom has 16 . Kim has 5 . " * 10]


@pytest.fixture(scope="module")
def causal():
    return sinkscope.load("lab-autoregressive")


def test_a_key_is_hidden_from_the_queries_behind_the_context_alone(causal):
    """Against a dense mask: the context reads all keys, what follows does not see the first one."""
    ids = causal.tokenize(TEXTS[0])[:40]
    with HidePositions([0], steps=[1])(causal):
        found = nats_behind(causal, ids, 16)
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    mask[16:, 0] = False
    with torch.no_grad():
        logits = causal.network(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0].log_softmax(-1)
    # the first prediction behind the context is made by the context's own last query
    expected = -sum(float(logits[at - 1, ids[at]]) for at in range(16, 40))
    assert found == pytest.approx(expected, rel=1e-4)


def test_rows_are_paired_with_no_rule(causal):
    found = text_likelihood(causal, TEXTS, ["top:1", HideTopSinks(2)], context=16, answer=16, limit=6)
    none, one, two = found["rows"]
    assert none["hide"] == "none" and none["difference"] == 0 and none["removed_share"] == 0
    assert one["nats"] - none["nats"] == pytest.approx(one["difference"])
    assert one["interval"][0] <= one["difference"] <= one["interval"][1] and one["removed_share"] > 0.01
    assert two["removed_share"] > one["removed_share"]


@torch.no_grad()
def test_where_the_attention_went_is_told_beside_no_rule(causal):
    """Against whole maps of transformers' own eager attention, with and without the first key for the answer."""
    found = text_likelihood(causal, TEXTS, ["position:0", "rowmass:1", "position:90"], context=16, answer=16, limit=1)
    mask = torch.ones(2, 1, 32, 32).tril()
    mask[1, :, 16:, 0] = 0
    causal.network.set_attn_implementation("eager")
    ids = torch.tensor([causal.tokenize(TEXTS[0])[:32]] * 2)
    maps = causal.network(ids, attention_mask=(1 - mask) * -1e9, output_attentions=True).attentions
    causal.network.set_attn_implementation("sdpa")
    without, hidden = torch.stack(maps)[:, :, :, 16:].mean((0, 2, 3))
    place = int((hidden - without).argmax())
    expected = {"position": place, "without": float(without[place]), "hidden": float(hidden[place])}
    _, first, mass, absent = found["rows"]
    assert first["moved"] == pytest.approx(expected, abs=1e-5) and place != 0
    assert first["removed_share"] == pytest.approx(float(without[0]), rel=0.01)
    assert mass["removed_share"] > 0 == len(mass["without_effect"])
    assert (absent["moved"], absent["difference"], absent["removed_share"]) == (None, 0, 0)
    assert absent["without_effect"] == ["position:90 hid nothing: no such key was there for its queries"]


@torch.no_grad()
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_window_behind_a_context_is_a_cache_that_drops_keys(causal, everywhere):
    found = text_likelihood(causal, TEXTS, ["window:2+5"], context=16, answer=16, limit=1, everywhere=everywhere)
    ids, place = causal.tokenize(TEXTS[0])[:32], torch.arange(32)
    mask = ((place[:, None] - place < 5) | (place < 2)).tril()
    if not everywhere:
        mask[:16] = torch.ones(16, 32, dtype=torch.bool).tril()
    logits = causal.network(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0].log_softmax(-1)
    assert found["rows"][1]["nats"] == pytest.approx(-sum(float(logits[at - 1, ids[at]]) for at in range(16, 32)) / 16)


def test_a_diffusion_model_has_the_masked_estimate():
    model = sinkscope.load("lab-diffusion")
    found = text_likelihood(model, TEXTS, ["top:1"], context=16, answer=8, limit=1)
    ids = model.tokenize(TEXTS[0])[:24]
    expected = -sinkscope.log_likelihood(model, ids[:16], ids[16:], samples=32).total / 8
    assert found["rows"][0]["nats"] == pytest.approx(expected)


def test_a_second_call_computes_only_what_is_missing(causal, tmp_path, monkeypatch):
    given = {"context": 16, "answer": 16, "out": tmp_path / "run"}
    text_likelihood(causal, TEXTS, ["top:1"], limit=3, **given)
    with (tmp_path / "run" / "windows.jsonl").open("a") as file:
        file.write('{"key": "top')  # killed while writing
    calls = []
    real = nats_behind
    monkeypatch.setattr("sinkscope.evaluation.text_likelihood.nats_behind", lambda *one: calls.append(1) or real(*one))
    again = text_likelihood(causal, TEXTS, ["top:1"], limit=4, **given)
    assert len(calls) == 2 and again["windows"] == 4
    assert text_likelihood(causal, TEXTS, ["top:1"], limit=4, **given) == again and len(calls) == 2
    with pytest.raises(CallError, match="another likelihood"):
        text_likelihood(causal, TEXTS, ["top:1"], limit=3, **{**given, "context": 8})


def test_texts_are_read_from_either_kind_of_file(tmp_path):
    (tmp_path / "a.txt").write_text("one text")
    lines = [{"text": "first"}, {"prompt": "se", "answer": "cond"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_texts(tmp_path / "a.txt") == ["one text"] and read_texts(tmp_path / "b.jsonl") == ["first", "second"]
    with pytest.raises(CallError, match="expected a text"):
        read_texts(tmp_path / "none.txt")


def test_a_text_shorter_than_its_context_is_one_message(causal):
    with pytest.raises(CallError, match="longer text, or a smaller --context"):
        text_likelihood(causal, ["Tom has 12 apples"], ["top:1"])
