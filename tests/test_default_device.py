"""A default device and an autocast of the caller change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from random_models import TINY

import sinkscope
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.starting_network import build_network

PROMPTS = ["Q: 1 + 2\nA:", "Q: 1 + 2 + 3\nA:"]
ON_META = torch.device("meta")  # where nothing can be read
TENSORS = ("column_sums", "self_attention", "value_norms", "output_norms", "confidence", "tokens")


def recorded(model, rule, out, **settings):
    settings = {"length": 8, "steps": 4, "block": 8} | settings
    with sinkscope.recording(model, out=out), sinkscope.parse_rule(rule)(model):
        answers = sinkscope.generate(model, PROMPTS, **settings)
    trace = sinkscope.open_traces(out)[1]
    return [one.tokens.tolist() for one in answers], {name: getattr(trace, name)[:] for name in TENSORS}


@pytest.mark.parametrize("rule", ["none", "top:1@current", "mass:1", "persistent:1", "class:1", "window:2+5"])
def test_a_recorded_generation(diffusion, tmp_path, rule):
    settings = {"temperature": 0.5, "seed": 3}
    tokens, expected = recorded(diffusion, rule, tmp_path / "usual", **settings)
    with ON_META:
        other, found = recorded(diffusion, rule, tmp_path / "meta", **settings)
    assert other == tokens
    for tensor in TENSORS:
        assert found[tensor].dtype == expected[tensor].dtype, tensor
        assert np.array_equal(found[tensor], expected[tensor], equal_nan=True), tensor


def test_a_model_is_loaded_onto_its_own_device():
    with ON_META:
        model = sinkscope.load("lab-diffusion")
    assert {one.device.type for one in (*model.network.parameters(), *model.network.buffers())} == {"cpu"}


@pytest.mark.parametrize("name", ["token-2", "gate"])
def test_a_network_that_is_given_a_sink(name):
    found = []
    for device in ("cpu", "meta"):
        network = build_network(replace(RECIPES["lab-diffusion"], architecture=TINY), build_tokenizer())
        with torch.device(device):
            sinkscope.add_sink_token(network, name)
        found.append({key: one for key, one in network.state_dict().items() if "sink" in key or "gate" in key})
    assert found[0] and found[0].keys() == found[1].keys()
    assert all(torch.equal(one, found[1][key]) for key, one in found[0].items())


@pytest.mark.parametrize("cache", ["fast-dllm-dual", "d2cache", "block:keep=random,budget=4"])
def test_generating_with_a_cache(diffusion, cache):
    settings = {"length": 8, "steps": 4, "block": 4, "cache": cache}
    expected = [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)]
    with ON_META:
        assert [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)] == expected
    with torch.autocast("cpu", torch.bfloat16):
        answers = sinkscope.generate(diffusion, PROMPTS, **settings)
    assert not any((answer.tokens == diffusion.card.mask_id).any() for answer in answers)


@pytest.mark.parametrize("rule", ["none", "top:1"])
def test_a_recording_under_autocast_is_in_float32(diffusion, tmp_path, rule):
    _, expected = recorded(diffusion, "none", tmp_path / "plain")
    with torch.autocast("cpu", torch.bfloat16):
        _, found = recorded(diffusion, rule, tmp_path / "autocast")
    for name in TENSORS:
        assert found[name].dtype == expected[name].dtype, name
    if rule == "none":
        assert np.allclose(found["output_norms"][0], expected["output_norms"][0], rtol=0.05, equal_nan=True)
