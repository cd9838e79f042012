"""The recipes that compare sinks: same batches, same body, one difference."""

import dataclasses
import json

import pytest
import torch
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.lab.canvases import draw_canvases
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES, SHORT, Architecture
from sinkscope.lab.run_folder import LOG
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import mask_canvases, masked_diffusion_loss, train_checkpoint
from sinkscope.models.converting import fold

SMALL = Architecture(layers=2, hidden_size=24, heads=3, kv_heads=3, intermediate_size=40, max_positions=96)
FEW = dataclasses.replace(SHORT, tokens=192)


def tiny(name, **changes):
    return dataclasses.replace(
        RECIPES[name],
        **{"architecture": SMALL, "canvases": FEW, "updates": 20, "autocast": False, "learning_rate": 1e-2} | changes,
    )


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.mark.parametrize("name", ["token-2", "logit", "gate", "off-by-one"])
def test_all_arms_begin_with_the_same_body(name, tokenizer):
    plain, mine = (build_network(tiny(f"lab-sink-{arm}", seed=3), tokenizer) for arm in ("none", name))
    weights = dict(mine.named_parameters())
    assert all(torch.equal(weights.pop(key), parameter) for key, parameter in plain.named_parameters())
    assert all("sink_" in key for key in weights) and (weights or name == "off-by-one")


def test_a_logit_shift_reads_each_prediction_one_place_to_the_left(tokenizer):
    network = build_network(tiny("lab-shifted", start_from=None), tokenizer)
    canvases = draw_canvases(FEW, tokenizer, 0, 0)
    common = {"mask_id": tokenizer.mask_token_id, "whole_canvas_share": 0.0}
    loss = masked_diffusion_loss(network, canvases, **common, generator=torch.Generator().manual_seed(2), shift=True)
    noisy, weights, maskable = mask_canvases(canvases, tokenizer.mask_token_id, 0.0, torch.Generator().manual_seed(2))
    shifted = torch.roll(network(noisy, use_cache=False).logits, 1, dims=1)
    each = torch.nn.functional.cross_entropy(
        shifted.flatten(0, 1), canvases.tokens.flatten(), reduction="none"
    ).view_as(weights)
    assert_close(loss, (each * weights).sum() / maskable, terms=terms_of(network, 96) + weights.numel())
    assert not torch.isclose(
        loss, masked_diffusion_loss(network, canvases, **common, generator=torch.Generator().manual_seed(2)), rtol=1e-4
    )


def test_the_shifted_arms_start_from_the_autoregressive_model(tokenizer):
    given = sinkscope.load("lab-autoregressive").network
    for name in ("lab-shifted", "lab-shifted-token"):
        network = build_network(RECIPES[name], tokenizer)
        mine = dict(network.named_parameters())
        assert all(torch.equal(mine[key], parameter) for key, parameter in given.named_parameters())
        assert network.config.is_causal is False and network.config.sinkscope_family == "dream"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lab-sink-token", "lab-sink-logit", "lab-sink-gate", "lab-sink-token-end"])
def test_an_arm_trains_into_a_folder_that_loads_and_writes(name, tmp_path, short):
    out = train_checkpoint(tiny(name, canvases=dataclasses.replace(FEW, tokens=768), log_every=1), tmp_path / "model")
    losses = [json.loads(line)["loss"] for line in (out / LOG).read_text().splitlines()]
    assert len(losses) == 20 and sum(losses[-5:]) < 0.8 * sum(losses[:5])
    model = sinkscope.load(str(out))
    assert model.card.sink_token == RECIPES[name].sink_token and model.card.stored_dtype == "bfloat16"
    assert model.network.model.sink_token.trained
    assert sinkscope.generate(model, short, length=8, steps=4, block=8).steps == 4
    if "token" in model.card.sink_token:  # type: ignore
        assert sinkscope.load(str(fold(str(out), tmp_path / "folded"))).card.sink_token.endswith("(folded)")  # type: ignore
