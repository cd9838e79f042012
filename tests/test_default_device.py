"""What the caller has set for torch changes nothing: a default device, a default type, an autocast."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import TINY

import sinkscope
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.vocabulary import build_tokenizer

PROMPTS = ["Q: 1 + 2\nA:", "Q: 1 + 2 + 3\nA:"]
ON_META = torch.device("meta")  # where nothing can be read


@pytest.mark.parametrize("rule", ["top:1@current", "mass:1", "persistent:1", "class:1", "window:2+5"])
def test_a_recorded_generation(diffusion, tmp_path, rule):
    def written(out):
        with sinkscope.recording(diffusion, out=Path(out)), sinkscope.parse_rule(rule)(diffusion):
            answers = sinkscope.generate(diffusion, PROMPTS, length=8, steps=4, block=8, temperature=0.5)
        return [answer.tokens.tolist() for answer in answers], sinkscope.open_traces(out)[1].column_sums[-1]

    tokens, columns = written(tmp_path / "here")
    with ON_META:
        other, there = written(tmp_path / "there")
    assert other == tokens
    assert np.array_equal(there, columns, equal_nan=True)


def test_a_model_is_loaded_onto_its_own_device():
    with ON_META:
        model = sinkscope.load("lab-diffusion")
    assert {one.device.type for one in (*model.network.parameters(), *model.network.buffers())} == {"cpu"}


def test_the_roles_of_heads(diffusion):
    prompts = [f"Q: 1 + {number}\nA:" for number in range(10)]
    settings = {"canvases": 1, "length": 4, "steps": 4, "block": 4}
    expected = sinkscope.find_roles(diffusion, prompts, **settings)
    with ON_META:
        assert sinkscope.find_roles(diffusion, prompts, **settings).heads == expected.heads


@pytest.mark.parametrize("name", ["token-2", "gate"])
def test_a_network_that_is_given_a_sink(name):
    found = []
    for device, dtype in (("cpu", torch.float32), ("meta", torch.float32), ("cpu", torch.bfloat16)):
        network = build_network(replace(RECIPES["lab-diffusion"], architecture=TINY), build_tokenizer())
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                sinkscope.add_sink_token(network, name)
        finally:
            torch.set_default_dtype(torch.float32)
        found.append({key: one for key, one in network.state_dict().items() if "sink" in key or "gate" in key})
    for other in found[1:]:
        assert found[0] and found[0].keys() == other.keys()
        assert all(torch.equal(one, other[key]) for key, one in found[0].items())


@pytest.mark.parametrize("cache", ["fast-dllm-dual", "d2cache", "block:keep=random,budget=4"])
def test_generating_with_a_cache(diffusion, cache):
    settings = {"length": 8, "steps": 4, "block": 4, "cache": cache}
    expected = [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)]
    with ON_META:
        assert [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)] == expected
    with torch.autocast("cpu", torch.bfloat16):
        answers = sinkscope.generate(diffusion, PROMPTS, **settings)
    assert not any((answer.tokens == diffusion.card.mask_id).any() for answer in answers)


@pytest.mark.parametrize("rule", ["none", "top:1@zero"])
def test_a_recording_of_a_model_with_a_sink_token_under_autocast(rule, tmp_path):
    model = sinkscope.load("lab-sink-token", dtype="float32")
    columns = []
    for autocast in (False, True):
        out = tmp_path / str(autocast)
        under = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        with under, sinkscope.recording(model, out=out), sinkscope.parse_rule(rule)(model):
            sinkscope.generate(model, PROMPTS[0], length=8, steps=1, block=8)
        columns.append(torch.from_numpy(sinkscope.open_trace(out).column_sums[0]))
    torch.testing.assert_close(columns[1], columns[0], rtol=0.1, atol=0.1)
