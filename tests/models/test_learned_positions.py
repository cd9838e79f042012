"""A Llama with learned absolute positions instead of rotations: loaded, checked, written with, recorded."""

import dataclasses

import pytest
import torch
from closeness import assert_close, terms_of
from other_kernels import other_kernels

import sinkscope
from sinkscope.decoding.checking import check_model
from sinkscope.lab.recipes import RECIPES, Architecture
from sinkscope.lab.training import train_checkpoint

SHAPE = Architecture(
    layers=3, hidden_size=40, heads=5, kv_heads=5, intermediate_size=72, max_positions=64, positions="learned"
)
PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    canvases = dataclasses.replace(
        RECIPES["lab-diffusion-learned-positions"].canvases, tokens=96, lengths=(48,), weights=(1.0,)
    )
    recipe = dataclasses.replace(
        RECIPES["lab-diffusion-learned-positions"], updates=1, architecture=SHAPE, canvases=canvases
    )
    return train_checkpoint(recipe, tmp_path_factory.mktemp("models") / "learned")


@pytest.fixture(scope="module")
def model(folder):
    return sinkscope.load(folder, dtype="float32")


def test_every_check_passes(model):
    checks = check_model(model)
    assert [one for one in checks if not one.passed] == []
    assert any(one.name == "positions are finite" for one in checks)


def test_without_positions_tokens_are_a_set_and_with_them_they_are_not(model):
    network, tokens = model.network, torch.tensor([[5, 9, 14, 20, 33]])
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        here, there = network(tokens).logits, network(tokens[:, order]).logits
        assert not torch.allclose(here[:, order], there, atol=1e-4)
        moved = network(tokens[:, order], position_ids=order[None]).logits
        assert_close(moved, here[:, order], terms=terms_of(network, 5))  # nothing but the table knows a place


def test_it_writes_alone_in_a_batch_and_recorded(model, tmp_path):
    settings = {"length": 12, "steps": 12, "block": 12}
    alone = sinkscope.generate(model, PROMPT, **settings)
    with other_kernels(model.network):
        padded = sinkscope.generate(model, [PROMPT, PROMPT + " 7 + 5"], **settings)[0]
    with sinkscope.recording(model, out=tmp_path / "run"):
        recorded = sinkscope.generate(model, PROMPT, **settings)
    assert alone.tokens.tolist() == padded.tokens.tolist() == recorded.tokens.tolist()
    trace = sinkscope.open_trace(tmp_path / "run")
    assert_close(trace.column_sums[:].sum(axis=-1), float(trace.lengths[0]), terms=3 * int(trace.lengths[0]))
