"""torch's default dtype is the user's: what is computed and recorded does not depend on it."""

import numpy as np
import pytest
import torch

import sinkscope

PROMPT = [5, 9, 11, 7]
TENSORS = ("column_sums", "self_attention", "value_norms", "output_norms", "confidence", "tokens")


def recorded(model, settings, rule, out):
    with sinkscope.recording(model, out=out), sinkscope.parse_rule(rule)(model):
        sinkscope.generate(model, PROMPT, **settings)
    trace = sinkscope.open_trace(out)
    return {name: np.asarray(getattr(trace, name)[:]) for name in TENSORS}


@pytest.mark.parametrize(("rule", "temperature"), [("none", 0.7), ("top:1", 0.0), ("persistent:1", 0.0)])
def test_a_recording_is_the_same(diffusion, tmp_path, rule, temperature):
    settings = {"length": 8, "steps": 4, "block": 4, "temperature": temperature, "seed": 3}
    expected, before = recorded(diffusion, settings, rule, tmp_path / "usual"), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = recorded(diffusion, settings, rule, tmp_path / "unusual")
    finally:
        torch.set_default_dtype(before)
    for name in TENSORS:
        assert found[name].dtype == expected[name].dtype and np.array_equal(
            found[name], expected[name], equal_nan=True
        ), name


@pytest.mark.parametrize("rule", ["none", "top:1"])
def test_a_recording_under_autocast_is_in_float32(diffusion, tmp_path, rule):
    settings = {"length": 8, "steps": 4, "block": 4}
    expected = recorded(diffusion, settings, "none", tmp_path / "plain")
    with torch.autocast("cpu", torch.bfloat16):
        found = recorded(diffusion, settings, rule, tmp_path / "autocast")
    for name in TENSORS:
        assert found[name].dtype == expected[name].dtype, name
    if rule == "none":
        assert np.allclose(found["output_norms"][0], expected["output_norms"][0], rtol=0.05, equal_nan=True)


@torch.no_grad()
def test_a_manifest_says_what_became_of_the_model(diffusion_folder, tmp_path):
    model, stock = sinkscope.load(str(diffusion_folder)), sinkscope.load(str(diffusion_folder)).card
    for number, (change, dtype, weights) in enumerate(
        (
            (lambda network: network, "float32", stock.weight_hash),
            (lambda network: network.bfloat16(), "bfloat16", stock.weight_hash),
            (lambda network: network.lm_head.weight.data.mul_(2), "bfloat16", None),
        )
    ):
        change(model.network)
        with sinkscope.recording(model, out=tmp_path / f"{number}.trace"):
            sinkscope.generate(model, [5, 9, 11, 7], length=4, steps=4, block=4)
        manifest = sinkscope.open_trace(tmp_path / f"{number}.trace").manifest
        assert manifest["model"]["dtype"] == manifest["dtype"] == dtype
        assert manifest["model"]["stored_dtype"] == stock.stored_dtype
        assert manifest["model"]["weight_hash"] == weights
