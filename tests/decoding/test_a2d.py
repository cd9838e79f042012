"""dllm's A2D models from folders in their published layout: logits, and every token of every step, as published."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from seeded_models import changes_of, steps_of, words
from seeded_network import MASK, seed_weights, seeded_network

import sinkscope
from sinkscope.errors import CallError, ModelError

PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "a2d.json").read_text())
BODIES = {"llama": ("Llama", 0), "qwen2": ("Qwen2", 1), "qwen3": ("Qwen3", 2)}


def published_folder(folder, kind, **changes):
    """Write a seeded network as dllm's convert.py does: its own model_type, no mask token in config.json."""
    name, seed = BODIES[kind]
    config = seeded_network(kind, seed).config
    network = seed_weights(getattr(transformers, f"{name}ForCausalLM")(config), seed)
    network.save_pretrained(folder)
    words().save_pretrained(folder)
    stored = json.loads((folder / "config.json").read_text())
    stored |= {"model_type": f"a2d-{kind}", "architectures": [f"A2D{name}LMHeadModel"], **changes}
    stored["auto_map"] = {"AutoModel": f"modeling_{kind}.A2D{name}LMHeadModel"}
    del stored["is_causal"]
    (folder / "config.json").write_text(json.dumps(stored))
    return folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return cache(lambda kind: sinkscope.load(published_folder(tmp_path_factory.mktemp("a2d") / kind, kind)))


@pytest.mark.parametrize("kind", BODIES)
def test_the_logits_are_the_published_ones(kind, loaded):
    model = loaded(kind)
    assert (model.card.family, model.card.mask_id) == ("a2d", MASK)
    with torch.no_grad():
        found = model.network(torch.tensor([PUBLISHED["prompt"]])).logits[0, ::4].flatten()
    expected = torch.tensor(PUBLISHED["logits"][kind])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", PUBLISHED["cases"], ids=lambda case: f"{case['network']}-{case['settings']}")
def test_every_step_writes_the_published_tokens(case, loaded):
    steps = steps_of(loaded(case["network"]), case["prompts"], **case["settings"])
    assert changes_of(steps, case["prompts"], case["settings"]["length"]) == case["steps"]


def test_settings_that_exclude_each_other_are_refused(loaded):
    with pytest.raises(CallError, match="one of threshold and factor"):
        sinkscope.generate(loaded("llama"), [3, 4], length=4, threshold=0.9, factor=0.5)


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    published_folder(tmp_path, "llama")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="mask_token of tokenizer_config"):
        sinkscope.load(tmp_path)
