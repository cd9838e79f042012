"""A checkpoint of the family is loaded and written with; an unknown key of its config.json is refused."""

import json
import re

import pytest
from safetensors.torch import save_file
from tiny import LLAMA_CONFIG, TINY, weights
from tiny_tokenizers import save_llada_tokenizer

import sinkscope
from sinkscope.errors import ModelError

LEFT_OUT = ("hidden_size", "rope_scaling")
CONFIG = {key: value for key, value in LLAMA_CONFIG.items() if key not in LEFT_OUT} | {
    "model_type": "tiny",
    "architectures": ["TinyModel"],
    "width": 64,
    "dropout": 0.1,
    "mask_token_id": 60,
    "eos_token_id": 57,
}


def own_name(name):
    name = name.replace("model.embed_tokens", "tokens")
    return re.sub(r"model\.layers\.(\d+)\.self_attn\.q_proj", r"blocks.\1.query", name)


@pytest.fixture
def folder(tmp_path):
    tensors = {own_name(name): tensor for name, tensor in weights(TINY["llama"]).items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return save_llada_tokenizer(tmp_path)


def test_it_is_loaded_and_written_with(folder):
    model = sinkscope.load(str(folder))
    answer = sinkscope.generate(model, "w3 w17 w5", length=7, tokens_at_once=3)
    assert (model.family.name, model.family.causal, answer.steps) == ("tiny", False, 3)


def test_an_unknown_key_is_refused(folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"depth_of_colour": 3}))
    with pytest.raises(ModelError, match="depth_of_colour"):
        sinkscope.load(str(folder))
