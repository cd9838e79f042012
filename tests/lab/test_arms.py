"""The recipes that compare sinks: same batches, same body, one difference."""

import dataclasses
import json

import pytest
import torch
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.errors import TrainingError
from sinkscope.lab.canvases import draw_canvases
from sinkscope.lab.objectives import mask_canvases, masked_diffusion_loss
from sinkscope.lab.recipes import ARMS, RECIPES, SHORT, Architecture
from sinkscope.lab.run_folder import LOG
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import train_checkpoint
from sinkscope.lab.vocabulary import build_tokenizer
from sinkscope.models.folding import fold
from sinkscope.models.sink_token import VARIANTS

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


def test_the_arms_differ_in_their_sink_alone():
    arms = [RECIPES[f"lab-sink-{name}"] for name in ARMS]
    assert [arm.sink_token for arm in arms] == list(VARIANTS) == list(ARMS)
    assert len({dataclasses.replace(arm, name="", sink_token="none") for arm in arms}) == 1
    shifted = [
        dataclasses.replace(RECIPES[name], name="", sink_token="none") for name in ("lab-shifted", "lab-shifted-token")
    ]
    assert shifted[0] == shifted[1] and shifted[0].start_from == "lab-autoregressive"
    assert max(SHORT.lengths) <= 96


@pytest.mark.parametrize("name", [name for name in ARMS if name != "none"])
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


def test_weights_of_another_shape_are_no_start(tokenizer):
    with pytest.raises(TrainingError, match=r"the weights of lab-autoregressive do not fit lab-shifted: "):
        build_network(tiny("lab-shifted"), tokenizer)


def test_under_autocast_gradients_are_as_near_to_fp32_as_those_of_a_token_in_the_sequence(tokenizer):
    network, plain = (build_network(tiny(name), tokenizer) for name in ("lab-sink-token", "lab-sink-none"))
    canvases, embedding = draw_canvases(FEW, tokenizer, 0, 0), network.model.sink_token.embedding
    noisy, weights, maskable = mask_canvases(canvases, tokenizer.mask_token_id, 0.0, torch.Generator().manual_seed(2))

    def in_sequence():
        row = embedding.detach().clone().requires_grad_()
        text = torch.cat([row[None].expand(len(noisy), -1, -1), plain.model.embed_tokens(noisy)], dim=1)
        mask = torch.zeros(1, 1, text.shape[1], text.shape[1])
        mask[..., 0, 1:] = -torch.inf
        hidden = plain.model(inputs_embeds=text, attention_mask=mask, use_cache=False).last_hidden_state[:, 1:]
        each = torch.nn.functional.cross_entropy(
            plain.lm_head(hidden).float().flatten(0, 1), canvases.tokens.flatten(), reduction="none"
        )
        return torch.autograd.grad((each.view_as(weights) * weights).sum() / maskable, [row, *plain.parameters()])

    def beside():
        loss = masked_diffusion_loss(
            network,
            canvases,
            mask_id=tokenizer.mask_token_id,
            whole_canvas_share=0.0,
            generator=torch.Generator().manual_seed(2),
        )
        parameters = dict(network.named_parameters())
        return torch.autograd.grad(loss, [embedding, *(parameters[name] for name, _ in plain.named_parameters())])

    exact, ours = in_sequence(), beside()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs_rounded, ours_rounded = in_sequence(), beside()
    for true, mine, rounded, rounded_mine in zip(exact, ours, theirs_rounded, ours_rounded, strict=True):
        assert_close(
            mine, true, terms=3 * terms_of(network, 96) + 1536
        )  # backwards each product is two; tokens are summed
        assert (rounded_mine - true).norm() < 2 * (rounded - true).norm() < 0.1 * true.norm()


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
