"""torch's default device does not matter: a model runs on its own device."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import TINY

import sinkscope
from sinkscope.decoding import log_likelihood
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.vocabulary import build_tokenizer
from sinkscope.models import FAMILIES
from sinkscope.models.folding import fold

DREAM, MMADA = FAMILIES["dream"], FAMILIES["mmada"]

RULES = ["none", "top:1", "top:1@current", "random:1", "mass:1", "persistent:1", "class:1", "window:2+5"]
PROMPTS = ["Q: 1 + 2\nA:", "Q: 1 + 2 + 3\nA:"]


def written(model, out, rule="none", **settings):
    with sinkscope.recording(model, out=Path(out)), sinkscope.parse_rule(rule)(model):
        answers = sinkscope.generate(model, PROMPTS, **settings)
    return [answer.tokens.tolist() for answer in answers], sinkscope.open_traces(out)[1].column_sums[-1]


@pytest.mark.parametrize("rule", RULES)
def test_a_recorded_generation(diffusion, tmp_path, rule):
    settings = {"length": 8, "steps": 4, "block": 8, "temperature": 0.5}
    tokens, columns = written(diffusion, tmp_path / "here", rule, **settings)
    with torch.device("meta"):  # where nothing can be read
        other, there = written(diffusion, tmp_path / "there", rule, **settings)
    assert other == tokens
    assert np.array_equal(there, columns, equal_nan=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_autoregressive_generation(autoregressive, tmp_path, temperature):
    tokens, _ = written(autoregressive, tmp_path / "here", "random:1", length=4, temperature=temperature)
    with torch.device("meta"):
        assert written(autoregressive, tmp_path / "there", "random:1", length=4, temperature=temperature)[0] == tokens


@pytest.mark.parametrize("family", [DREAM, MMADA])
def test_the_other_samplers(diffusion, family):
    model = replace(diffusion, family=family, card=replace(diffusion.card, family=family.name))
    expected = [
        answer.tokens.tolist() for answer in sinkscope.generate(model, PROMPTS, length=8, steps=4, temperature=0.4)
    ]
    with torch.device("meta"):
        assert [
            answer.tokens.tolist() for answer in sinkscope.generate(model, PROMPTS, length=8, steps=4, temperature=0.4)
        ] == expected


@pytest.mark.parametrize("method", ["monte_carlo", "chain_rule"])
def test_a_likelihood(diffusion, method):
    expected = log_likelihood(diffusion, PROMPTS[0], " 3", method=method, samples=8)
    with torch.device("meta"):
        assert log_likelihood(diffusion, PROMPTS[0], " 3", method=method, samples=8) == expected


def test_a_model_is_loaded_onto_its_own_device():
    with torch.device("meta"):
        model = sinkscope.load("lab-diffusion")
    assert {one.device.type for one in (*model.network.parameters(), *model.network.buffers())} == {"cpu"}
    found, expected = (
        sinkscope.generate(one, PROMPTS[0], length=8).text for one in (model, sinkscope.load("lab-diffusion"))
    )
    assert found == expected


def test_the_roles_of_heads(diffusion):
    prompts = [f"Q: 1 + {number}\nA:" for number in range(10)]
    settings = {"canvases": 1, "length": 4, "steps": 4, "block": 4}
    expected = sinkscope.find_roles(diffusion, prompts, **settings)
    with torch.device("meta"):
        assert sinkscope.find_roles(diffusion, prompts, **settings).heads == expected.heads


def test_drift_between_steps(diffusion, tmp_path):
    for name, device in (("here", "cpu"), ("there", "meta")):
        with torch.device(device), sinkscope.recording(diffusion, out=tmp_path / name, keep="drift"):
            sinkscope.generate(diffusion, PROMPTS[0], length=8, steps=4, block=8)
    here, there = (json.loads((tmp_path / name / "drift.json").read_text()) for name in ("here", "there"))
    assert here == there


def test_a_folded_sink_token(tmp_path):
    expected = fold("lab-sink-token", tmp_path / "here")
    with torch.device("meta"):
        found = fold("lab-sink-token", tmp_path / "there")
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["token-2", "logit", "gate"])
def test_a_network_that_is_given_a_sink(name):
    found = []
    for device, dtype in (
        ("cpu", torch.float32),
        ("meta", torch.float32),
        ("cpu", torch.float64),
        ("cpu", torch.bfloat16),
    ):
        network = build_network(replace(RECIPES["lab-diffusion"], architecture=TINY), build_tokenizer())
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                sinkscope.add_sink_token(network, name)
            assert name == "gate" or not network.model.sink_token.trained
        finally:
            torch.set_default_dtype(torch.float32)
        found.append({key: one for key, one in network.state_dict().items() if "sink" in key or "gate" in key})
    for other in found[1:]:
        assert found[0] and found[0].keys() == other.keys()
        assert all(torch.equal(one, other[key]) for key, one in found[0].items())


CACHES = [
    "fast-dllm-dual",
    "fast-dllm-prefix",
    "dllm-cache",
    "dkv-decode",
    "dkv-greedy",
    "d2cache",
    "elastic-cache",
    "sparse-dllm",
]
CACHES += [
    f"block:keep={keep},budget=4" for keep in ("random", "first", "norm", "top", "attended", "oracle", "no-sinks")
]
CACHES += [f"block:trigger={trigger}" for trigger in ("sink", "drift", "confidence", "entropy")]


def settings_for(cache):
    """Return settings that the cache does not refuse."""
    own = {"dkv-greedy": {"block": 8, "remasking": "random"}, "elastic-cache": {"block": 8}}
    return {"length": 8, "steps": 4, "block": 4, "cache": cache, **own.get(cache, {})}


@pytest.mark.parametrize("cache", CACHES)
def test_generating_with_a_cache(diffusion, cache):
    """The other default is one where nothing can be read."""
    settings = settings_for(cache)
    expected = [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)]
    with torch.device("meta"):
        assert [answer.tokens.tolist() for answer in sinkscope.generate(diffusion, PROMPTS, **settings)] == expected
