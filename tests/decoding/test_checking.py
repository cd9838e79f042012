import dataclasses

import pytest
import torch

import sinkscope
from sinkscope.decoding.checking import check_model
from sinkscope.models import LLADA, LLAMA


def failed(model):
    return [check.name for check in check_model(model) if not check.passed]


@pytest.fixture(params=["diffusion", "autoregressive"])
def folder(request):
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture
def model(folder):
    return sinkscope.load(str(folder))


def test_a_sound_model_passes_every_check(model):
    checks = check_model(model)
    assert len(checks) >= 9
    assert [check.name for check in checks if not check.passed] == []
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.found for check in checks)


def test_a_sound_model_in_bfloat16_passes_too(folder):
    assert failed(sinkscope.load(str(folder), dtype="bfloat16")) == []


def test_checking_leaves_the_model_alone(model):
    tokens = torch.tensor([[0, 40, 41, 42]])
    with torch.no_grad():
        before = model.network(tokens).logits
        check_model(model)
        assert torch.equal(model.network(tokens).logits, before)
    assert model.network.config._attn_implementation == "sdpa"


def test_a_model_that_attends_the_other_way_fails(model):
    family = LLADA if model.family.causal else LLAMA
    way = "causal" if family.causal else "bidirectional"
    mask = 2 if family is LLADA else None
    assert f"attention is {way}" in failed(dataclasses.replace(model, family=family, card=dataclasses.replace(model.card, mask_id=mask)))


def test_weights_that_are_not_finite_fail(model):
    with torch.no_grad():
        model.network.model.norm.weight[0] = torch.inf
    assert "logits are finite" in failed(model)


def test_rotations_that_were_never_filled_fail(model):
    """A buffer left uninitialised at load gives finite, wrong logits."""
    model.network.model.rotary_emb.inv_freq.fill_(1e-32)
    assert "rotation frequencies recomputed" in failed(model)


def test_a_card_that_counts_wrong_fails(model):
    assert failed(dataclasses.replace(model, card=dataclasses.replace(model.card, parameters=model.card.parameters + 1))) == [
        "parameters add up to the shape"
    ]


def test_attention_that_ignores_keys_fails(model):
    """Without values nothing that is hidden matters."""
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            if "v_proj" in name:
                weight.zero_()
    assert "hiding a key bites" in failed(model)
