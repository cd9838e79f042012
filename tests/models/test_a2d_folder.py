"""Folders for dllm: its own classes loaded four of them, with equal logits and tokens (results/models/README.md)."""

import json

import pytest
import torch

import sinkscope
from sinkscope.errors import CallError
from sinkscope.models.converting import convert_to_dllm as convert

PROMPT = list(range(5, 20))


def test_a_bundled_model_becomes_one_of_dllms(tmp_path, run):
    folder = tmp_path / "m"
    status, out, err = run("convert", "lab-diffusion", "--out", folder)
    assert status == 0 and str(folder) in out, err
    written, source = sinkscope.load(folder, dtype="float32"), sinkscope.load("lab-diffusion")
    assert (written.card.family, written.card.stored_dtype) == ("a2d", "bfloat16")
    with torch.no_grad():
        expected = source.network(torch.tensor([PROMPT])).logits
        assert torch.equal(written.network(torch.tensor([PROMPT])).logits, expected)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "a2d-llama" and config["architectures"] == ["A2DLlamaLMHeadModel"]
    # transformers 4 reads no rope_parameters, and no class of tokenizers of transformers 5
    assert config["rope_theta"] == 10000.0 and "rope_parameters" not in config
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_its_mask_gets_dllms_text_and_its_rotations_their_scaling(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend("tests/decoding")
    from test_a2d import MASK, published_folder

    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    source = published_folder(tmp_path / "source", "qwen3", rope_parameters=scaled)
    model = sinkscope.load(convert(str(source), tmp_path / "m"))
    assert model.tokenizer.convert_ids_to_tokens(MASK) == model.tokenizer.mask_token == "<|mask|>"
    assert model.network.config.rope_parameters == scaled
    with torch.no_grad():
        expected = sinkscope.load(source).network(torch.tensor([PROMPT])).logits
        assert torch.equal(model.network(torch.tensor([PROMPT])).logits, expected)


def test_networks_that_dllm_lacks_are_refused(tmp_path):
    for name in ("lab-autoregressive", "lab-sink-token"):
        with pytest.raises(CallError, match="expected a bidirectional llama"):
            convert(name, tmp_path / name)
