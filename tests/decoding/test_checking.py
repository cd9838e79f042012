import dataclasses
import json
import shutil

import pytest
import torch

import sinkscope
from sinkscope.attention.dispatch import compute
from sinkscope.decoding.checking import check_model
from sinkscope.models import FAMILIES

LLADA, LLAMA = FAMILIES["llada"], FAMILIES["llama"]


def failed(model):
    return [check.name for check in check_model(model) if not check.passed]


@pytest.fixture(params=["diffusion", "autoregressive"])
def model(request):
    return sinkscope.load(str(request.getfixturevalue(f"{request.param}_folder")))


def test_a_sound_model_passes_every_check(model):
    checks = check_model(model)
    assert len(checks) >= 9
    assert [check.name for check in checks if not check.passed] == []
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.found for check in checks)


def test_a_model_that_attends_the_other_way_fails(model):
    family = LLADA if model.family.causal else LLAMA
    way = "causal" if family.causal else "bidirectional"
    card = dataclasses.replace(model.card, family=family.name, mask_id=2 if family is LLADA else None)
    assert f"attention is {way}" in failed(dataclasses.replace(model, family=family, card=card))


@pytest.mark.parametrize(("name", "declared"), [("lab-diffusion", "dream"), ("lab-shifted", "llada")])
def test_logits_that_are_read_at_the_wrong_place_fail(name, declared):
    model = sinkscope.load(name)
    assert failed(model) == []
    assert failed(dataclasses.replace(model, family=FAMILIES[declared])) == ["tokens are read at the right place"]


def test_weights_that_are_not_finite_fail(model):
    with torch.no_grad():
        model.network.model.norm.weight[0] = torch.inf
    assert "logits are finite" in failed(model)


def test_rotations_that_were_never_filled_fail(model):
    """A buffer left uninitialised at load gives finite, wrong logits."""
    model.network.model.rotary_emb.inv_freq.fill_(1e-32)
    assert "rotation frequencies recomputed" in failed(model)


def test_attention_that_ignores_keys_fails(model):
    """Without values nothing that is hidden matters."""
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            if "v_proj" in name:
                weight.zero_()
    assert "hiding a key bites" in failed(model)


SCALINGS = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rotations_are_recomputed(autoregressive_folder, tmp_path, kind):
    copy = shutil.copytree(autoregressive_folder, tmp_path / "scaled")
    config = json.loads((copy / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": kind, **SCALINGS[kind], "rope_theta": 10000.0}
    (copy / "config.json").write_text(json.dumps(config))
    model = sinkscope.load(str(copy))
    name = "rotation frequencies are finite" if kind == "yarn" else "rotation frequencies recomputed"
    checks = check_model(model)
    assert all(check.passed for check in checks)
    assert kind in next(check.found for check in checks if check.name == name)
    model.network.model.rotary_emb.inv_freq[1] *= torch.inf if kind == "yarn" else 1.001
    assert name in failed(model)


def test_a_stored_tensor_that_was_not_used_fails(model):
    unused = dataclasses.replace(model.tensors, stored=model.tensors.stored + 1)
    assert failed(dataclasses.replace(model, tensors=unused)) == ["every stored tensor is used, none is missing"]


BOTH = ["columns add up", "attention rows add up"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda columns: {"sums": columns.sums.roll(1, -1)}, BOTH[1:]),
        (lambda columns: {"last_row": columns.last_row * 1.01}, BOTH[1:]),
        (lambda columns: {"diagonal": columns.diagonal.roll(1, -1)}, BOTH[1:]),
        (lambda columns: {"sums": columns.sums * 1.01}, BOTH),
        (lambda columns: {"sums": columns.sums * torch.nan}, BOTH),
    ],
    ids=["moved columns", "a row over 1", "a moved diagonal", "columns over", "no columns"],
)
def test_columns_that_are_not_those_of_the_map_fail(model, monkeypatch, change, names):
    """Moved columns still add up to the number of queries."""

    def changed(*args, **options):
        output, columns = compute(*args, **options)
        return output, dataclasses.replace(columns, **change(columns))

    monkeypatch.setattr("sinkscope.attention.call.compute", changed)
    assert failed(model) == names
