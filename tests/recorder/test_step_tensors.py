"""Stacked layers: what differs between them, and what is not known."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sinkscope
from sinkscope.attention import KeyNorms, norms_of
from sinkscope.errors import AttentionError
from sinkscope.recorder.step_tensors import (
    LayerTensors,
    check_numbers,
    join_devices,
    stack_layers,
)

BATCH, HEADS, KEYS, QUERIES, GROUPS = 2, 6, 7, 4, 3


def layer(heads=HEADS, kv_heads=3):
    norms = torch.rand(BATCH, kv_heads, KEYS)
    return LayerTensors(
        torch.rand(BATCH, heads, GROUPS, KEYS),
        torch.rand(BATCH, heads, QUERIES),
        torch.rand(BATCH, heads, KEYS),
        norms,
        norms + 1,
        None,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_layers_of_several_devices_are_joined_on_the_host(causal):
    """Runs of layers on one device travel together; here the split is made up, as there is one device."""
    layers = [layer(6), layer(6), layer(6)]
    whole = join_devices(stack_layers(layers, causal))
    parts = [stack_layers(layers[:2], causal)[0], stack_layers(layers[2:], causal)[0]]
    for name, joined in join_devices(parts).items():
        assert torch.equal(joined.nan_to_num(-1), whole[name].nan_to_num(-1)), name


@pytest.mark.parametrize("place", [(0, 0), (2, 1)])
def test_a_nan_is_found_with_step_layer_and_head(place):
    sums = torch.rand(3, 2, 7)
    check_numbers(sums, {}, ["a", "b", "c"], 9)
    sums[place][5] = torch.nan
    with pytest.raises(
        AttentionError,
        match=rf"attention of step 9 .* NaN first in layer {'abc'[place[0]]}, head {place[1]}; .*float32",
    ):
        check_numbers(sums, {}, ["a", "b", "c"], 9)


def test_a_layer_whose_input_lies_on_the_device_before_it():
    """The note of what enters a layer is taken before accelerate moves it; no device of the kind is needed to say where
    tensors lie.
    """
    with FakeTensorMode():

        def seen(entering, at):
            key = torch.empty(BATCH, 3, KEYS, 4, device=at)
            hidden = torch.empty(BATCH, KEYS, 8, device=entering)
            call = SimpleNamespace(
                hidden_states=hidden, groups=("all",), key=key, keys=KEYS, first_key=0, own=None, part=None
            )
            columns = SimpleNamespace(
                sums=torch.empty(BATCH, HEADS, 1, KEYS, device=at),
                diagonal=key[..., 0],
                last_row_in_force=key[..., 0],
                prefix=None,
            )
            return LayerTensors.of(call, columns, ("all",), KeyNorms(norms_of(key), norms_of(key)))

        parts = stack_layers([seen("cpu", "cpu"), seen("cpu", "meta"), seen("meta", "meta")], causal=True)
    assert [{str(one.device) for one in part.values()} for part in parts] == [{"cpu"}, {"meta"}]


@pytest.mark.parametrize("keep", ["columns", "top", "statistics"])
def test_a_norm_too_large_for_its_type_ends_the_recording(keep, diffusion, tmp_path, monkeypatch):
    """A reader would call the trace damaged, and statistics of it mean nothing."""
    for name, module in diffusion.network.named_modules():
        if name.endswith("v_proj"):
            monkeypatch.setattr(module.weight, "data", module.weight.data * 1e20)
    expected = "expected the value norms of step 0 to be finite, found infinite ones"
    with pytest.raises(AttentionError, match=expected), sinkscope.recording(diffusion, out=tmp_path / "run", keep=keep):
        sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=4, block=4)
