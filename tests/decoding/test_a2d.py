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
from sinkscope.attention import Watcher, subscribed
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


@pytest.mark.parametrize("case", PUBLISHED["blocks"], ids=lambda case: f"{case['network']}-{case['settings']}")
def test_block_diffusion_writes_the_published_tokens(case, loaded):
    model = loaded(case["network"])
    model.tokenizer.pad_token = "<eos>"
    steps = [step for step in steps_of(model, case["prompts"], **case["settings"]) if bool((step.written >= 0).any())]
    assert changes_of(steps, case["prompts"], case["settings"]["length"]) == case["steps"]


@pytest.mark.parametrize("guidance", [0.0, 1.5])
def test_columns_behind_the_cache_are_those_of_one_pass_over_the_canvas(guidance, loaded, tmp_path):
    model, prompt, block = loaded("qwen3"), [3, 14, 15, 9, 26], 4
    with sinkscope.recording(model, out=tmp_path / "t"):
        settings = {"length": 10, "steps": 6, "block": block, "guidance": guidance}
        sinkscope.generate(model, prompt, right_shift_logits=True, algorithm="bd3lm", **settings)
    trace = sinkscope.open_trace(tmp_path / "t")
    number = (torch.arange(15) + 3) // block  # the prompt of 5 tokens ends where a block does
    seen = (number[None] <= number[:, None]).float().log()[None, None]
    for step in range(trace.steps):
        end = int(trace.lengths[step])
        maps = []
        with torch.no_grad(), subscribed(model.network, maps_into(maps, seen[..., :end, :end])):
            ids = torch.from_numpy(trace.tokens[step, :end].astype("int64"))[None]
            model.network(ids, attention_mask=seen[..., :end, :end], use_cache=False)
        dense = torch.stack(maps)
        assert not trace.causal and (trace.column_sums[step, ..., :end] - dense.sum(-2).numpy()).max() < 2e-4


def maps_into(found, bias):
    """A watcher that keeps dense attention [head, query, key] of every layer, by three lines."""

    class Maps(Watcher):
        def watch(self, call, columns):
            key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
            scores = call.query.double() @ key.double().transpose(-1, -2) / call.query.shape[-1] ** 0.5
            found.append((scores + bias).softmax(-1)[0])

    return Maps()


def test_settings_that_exclude_each_other_are_refused(loaded):
    with pytest.raises(CallError, match="one of threshold and factor"):
        sinkscope.generate(loaded("llama"), [3, 4], length=4, threshold=0.9, factor=0.5)


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    published_folder(tmp_path, "llama")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="mask_token in tokenizer_config"):
        sinkscope.load(tmp_path)
