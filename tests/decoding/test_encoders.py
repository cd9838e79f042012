"""BERT and ModernBERT as masked diffusion models: logits and maps are transformers' own, and every token of every step
is the published sampler's, windows of local attention included.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from seeded_models import changes_of, steps_of, words
from seeded_network import EOS, MASK, VOCABULARY, seed_weights

import sinkscope
from sinkscope.errors import CallError, ModelError

PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "encoders.json").read_text())
PROMPT = [2, 7, 18, 28, 18, 28, 45, 9, 4, 5, 23]
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6}
SHAPE |= {"intermediate_size": 64, "max_position_embeddings": 128}
SPECIAL = {"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": EOS, "sep_token_id": EOS, "pad_token_id": EOS}
KINDS = {"bert": {}, "modernbert": {**SPECIAL, "local_attention": 6, "global_attn_every_n_layers": 3}}


@torch.no_grad()
def stock_network(kind, **options):
    """transformers' own network; smaller biases, so that BERT's tokens differ."""
    config = transformers.AutoConfig.for_model(kind, **SHAPE, **KINDS[kind])
    network = seed_weights(transformers.AutoModelForMaskedLM.from_config(config, **options), 3)
    for name, weight in network.named_parameters():
        if "bias" in name or "token_type" in name:
            weight.mul_(0.2)
    return network.eval()


def encoder_folder(folder, kind):
    stock_network(kind).save_pretrained(folder)
    words().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return cache(lambda kind: encoder_folder(tmp_path_factory.mktemp("encoders") / kind, kind))


@pytest.fixture(scope="module")
def loaded(folders):
    return cache(lambda kind: sinkscope.load(folders(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_transformers_own(kind, loaded):
    """Also where a text is padded on the left, which shifts the windows of local attention with it."""
    model, stock = loaded(kind), stock_network(kind)
    assert (model.card.family, model.card.mask_id, model.card.eos_id) == ("encoder", MASK, EOS)
    with torch.no_grad():
        expected = stock(torch.tensor([PROMPT])).logits
        assert torch.equal(model.network(torch.tensor([PROMPT])).logits, expected)
        padded = torch.tensor([[EOS] * 4 + PROMPT])
        seen = (torch.arange(padded.shape[1]) >= 4)[None, None, None].expand(-1, -1, padded.shape[1], -1)
        positions = (torch.arange(padded.shape[1]) - 4).clamp(min=0)[None]
        hidden = model.network.model(padded, attention_mask=seen, position_ids=positions).last_hidden_state
        found = model.network.lm_head(hidden)[:, 4:]
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: f"{case['network']}-{case['settings']}")
def test_every_step_writes_the_published_tokens(case, loaded):
    steps = steps_of(loaded(case["network"]), case["prompts"], **case["settings"])
    assert changes_of(steps, case["prompts"], case["settings"]["length"]) == case["steps"]


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_columns_are_those_of_its_own_maps(kind, loaded, tmp_path):
    model = loaded(kind)
    with sinkscope.recording(model, out=tmp_path):
        sinkscope.generate(model, PROMPT, length=6)
    trace = sinkscope.open_trace(tmp_path)
    canvas = torch.tensor([PROMPT + [MASK] * 6])
    with torch.no_grad():
        maps = stock_network(kind, attn_implementation="eager")(canvas, output_attentions=True).attentions
    dense = torch.stack([one[0].sum(-2) for one in maps])
    assert torch.allclose(torch.as_tensor(trace.column_sums[0]), dense, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_hiding_a_sink_bites_and_the_commands_run(kind, loaded, folders, tmp_path, run):
    model = loaded(kind)
    plain = sinkscope.generate(model, PROMPT, length=8, steps=8, block=8)
    with sinkscope.HideTopSinks(1, observe="current")(model):
        hidden = sinkscope.generate(model, PROMPT, length=8, steps=8, block=8)
    assert not torch.equal(plain.tokens, hidden.tokens)
    status, out, err = run("check", folders(kind), "--json")
    assert status == 0, out + err
    status, out, err = run("trace", folders(kind), "--prompt", "w2 w7 w18", "--length", "6", "--out", tmp_path / "t")
    assert status == 0, err
    assert sinkscope.open_trace(tmp_path / "t").tokens[0].tolist() == [2, 7, 18] + [MASK] * 6  # nothing around the text


def test_what_needs_a_cache_is_refused(loaded):
    for wrong in ({"algorithm": "bd3lm"}, {"cache": "dkv-decode"}):
        with pytest.raises(CallError, match="encoder"):
            sinkscope.generate(loaded("bert"), PROMPT, length=4, **wrong)


def test_an_encoder_without_a_mask_is_refused(tmp_path):
    encoder_folder(tmp_path, "bert")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="mask in the tokenizer"):
        sinkscope.load(tmp_path)
