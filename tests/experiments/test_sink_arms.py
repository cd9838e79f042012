"""The experiments on the sink token, run on models of a few updates; their counts are computed again here."""

import dataclasses
import importlib
import json
import sys

import _sink_arms
import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.training import train_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    home = tmp_path_factory.mktemp("arms")
    shape = Architecture(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=128)
    for name, seed in (("lab-sink-none", 0), ("lab-sink-token", 0), ("lab-sink-token", 1)):
        recipe = dataclasses.replace(RECIPES[name], updates=4, validate_every=2, architecture=shape, seed=seed)
        train_checkpoint(recipe, home / f"{name}-{seed}")
    (home / "unfinished").mkdir()
    (home / "unfinished" / "recipe.json").write_text(json.dumps({"name": "lab-sink-gate", "seed": 0}))
    return home


@pytest.fixture
def run(monkeypatch, arms, tmp_path):
    """Runs an experiment; gives its JSON."""

    def run(name, *more):
        module = importlib.import_module(name)
        what = [one for one in more[:1] if not one.startswith("-")]
        given = [*what, str(arms), "--out", str(tmp_path / "result"), *more[len(what) :]]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *given])
        if what:
            module.measure_all(_sink_arms.arguments_of(None, module.MEASURES, 1))
        else:
            module.main()
        assert (tmp_path / "result.md").read_text().startswith("# ")
        document = json.loads((tmp_path / "result.json").read_text())
        assert document["arms"] == {"lab-sink-none": [0], "lab-sink-token": [0, 1]} or "content" in more
        assert {"claim", "command", "commit", "wall_seconds"} <= set(document)
        return {(row["arm"], row["what"]): row for row in document["rows"]}, document

    return run


def test_quality(run, arms):
    rows, _ = run("sink_token_answers", "quality", "--problems", "6")
    loss = rows["lab-sink-token", "validation loss"]
    logs = [(arms / f"lab-sink-token-{seed}" / "training.jsonl").read_text().splitlines()[-1] for seed in (0, 1)]
    assert loss["mean"] == pytest.approx(np.mean([json.loads(log)["validation_loss"] for log in logs]))
    assert loss["difference"]["seeds"] == [0] and loss["difference"]["to"] == "lab-sink-none"
    assert rows["lab-sink-none", "exact match, 8 tokens a step"]["n"] == 6


def test_what_is_done_is_kept_until_something_else_is_asked(monkeypatch, arms, tmp_path):
    from _sink_arms import find_arms, measure_arms

    done = []

    def measure(arm, model):
        done.append((arm.name, arm.seed))
        return {"what": np.array([arm.seed, 0.1, np.nan])}

    first, second = find_arms(arms)[:1], find_arms(arms)[:2]
    measure_arms(first, measure, keep=tmp_path, asked=3)
    table = measure_arms(second, measure, keep=tmp_path, asked=3)
    assert done == [(arm.name, arm.seed) for arm in second]
    for seeds in table.values.values():
        for seed, row in seeds.items():
            np.testing.assert_array_equal(row["what"], [seed, 0.1, np.nan])
    measure_arms(first, measure, keep=tmp_path, asked=4)
    assert len(done) == 3


def test_movement(run):
    rows, document = run("sink_token_movement", "--problems", "5")
    what = "attention on the token, or on the learned score"
    share = rows["lab-sink-token", what]
    assert 0 < share["mean"] < 1 and rows["lab-sink-none", what]["mean"] == 0
    assert rows["lab-sink-none", "sinks per head and step"]["n"] == 5
    without, with_it = (rows[name, "attention on sinks of the text"] for name in ("lab-sink-none", "lab-sink-token"))
    if without["mean"] > 0:
        less = document["less_on_text_sinks"]["lab-sink-token"]["mean"]
        assert less == pytest.approx((without["mean"] - with_it["seeds"]["0"]) / without["mean"])
        received = document["received_over_text_sinks"]["lab-sink-token"]["mean"]
        assert received == pytest.approx(share["seeds"]["0"] / without["mean"])


@torch.no_grad()
def test_mixing(run, arms):
    rows, _ = run("sink_token_states", "mixing", "--problems", "5")
    network = sinkscope.load(str(arms / "lab-sink-token-0"), dtype="float32").network
    hidden, norms = network.model.sink_token.embedding, []
    for layer in network.model.layers:
        value = layer.self_attn.v_proj(layer.input_layernorm(hidden)).view(2, 8)
        norms.append(value.norm(dim=-1).mean())
        hidden = hidden + layer.self_attn.o_proj(value.repeat_interleave(2, dim=0).flatten()[None])
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    found = rows["lab-sink-token", "value norm of the token"]["seeds"]["0"]
    assert_close(found, torch.stack(norms).mean(), terms=terms_of(network, 1))
    hidden_too = {what for arm, what in rows if arm == "lab-sink-token" and what.endswith("token hidden")}
    assert len(hidden_too) == 3 and not {what for arm, what in rows if arm == "lab-sink-none"} & hidden_too


@torch.no_grad()
def test_content(run, arms):
    rows, document = run("sink_token_states", "content", "--problems", "3")
    network = sinkscope.load(str(arms / "lab-sink-token-1"), dtype="float32").network
    logs = torch.log_softmax(network.lm_head(network.model.norm(network.model.sink_token.embedding)), -1)
    bits = float(-(logs.exp() * logs).sum() / np.log(2))
    assert_close(
        rows["lab-sink-token", "layer 0: bits, token"]["seeds"]["1"], bits, terms=logs.numel(), dtype=torch.float32
    )
    assert {what.split(":")[0] for _, what in rows} == {"layer 0", "layer 1"} and len(document["words"]) == 2


@torch.no_grad()
@pytest.mark.parametrize("variant", ["token-2", "token-zero-value"])
def test_rows_of_tokens_are_those_that_the_constant_keys_come_from(monkeypatch, variant):
    from sink_token_states import rows_of_tokens

    from sinkscope.models.sink_token import constant_keys

    model = sinkscope.load("lab-autoregressive", dtype="float32")
    network = sinkscope.add_sink_token(model.network, variant)
    keys, _ = constant_keys(network.model)
    for layer, row, expected in zip(network.model.layers, rows_of_tokens(network.model), keys, strict=False):
        found = layer.self_attn.k_proj(layer.input_layernorm(row))
        assert_close(found, expected.transpose(0, 1).flatten(1), terms=terms_of(network, 1))
