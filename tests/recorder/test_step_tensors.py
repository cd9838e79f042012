"""Stacked layers: what differs between them, and what is not known."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sinkscope
from sinkscope.attention import KeyNorms, norms_of
from sinkscope.errors import AttentionError
from sinkscope.recorder.step_tensors import join_devices, layer_tensors, stack_layers

BATCH, HEADS, KEYS = 2, 6, 7


def layer(entering="cpu", at="cpu"):
    key = torch.rand(BATCH, 3, KEYS, 4).to(at)
    call = SimpleNamespace(
        hidden_states=torch.rand(BATCH, KEYS, 8).to(entering),
        groups=("all",),
        key=key,
        keys=KEYS,
        first_key=0,
        own=None,
        part=None,
    )
    columns = SimpleNamespace(
        sums=torch.rand(BATCH, HEADS, 1, KEYS).to(at), diagonal=key[..., 0], last_row_in_force=key[..., 0], prefix=None
    )
    return layer_tensors(call, columns, ("all",), KeyNorms(norms_of(key), norms_of(key)))


def test_layers_of_several_devices_are_joined_on_the_host():
    """Runs of layers on one device travel together; here the split is made up, as there is one device."""
    layers = [layer(), layer(), layer()]
    whole = join_devices(stack_layers(layers, causal=True))
    parts = [stack_layers(layers[:2], causal=True)[0], stack_layers(layers[2:], causal=True)[0]]
    for name, joined in join_devices(parts).items():
        assert torch.equal(joined, whole[name]), name


def test_a_layer_whose_input_lies_on_the_device_before_it():
    """The note of what enters a layer is taken before accelerate moves it."""
    with FakeTensorMode():
        parts = stack_layers([layer("cpu", "cpu"), layer("cpu", "meta"), layer("meta", "meta")], causal=True)
    assert [{str(one.device) for one in part.values()} for part in parts] == [{"cpu"}, {"meta"}]


def test_a_norm_too_large_for_its_type_ends_the_recording(diffusion, tmp_path, monkeypatch):
    """A reader would call the trace damaged, and statistics of it mean nothing."""
    for name, module in diffusion.network.named_modules():
        if name.endswith("v_proj"):
            monkeypatch.setattr(module.weight, "data", module.weight.data * 1e20)
    expected = "expected numbers in step 0, found infinite value norms"
    with pytest.raises(AttentionError, match=expected), sinkscope.recording(diffusion, out=tmp_path / "run"):
        sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=4, block=4)
