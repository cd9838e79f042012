"""Whether a step is causal is read from the mask and the flag that the attention gets, not from attributes alone."""

import numpy as np
import pytest
import torch
import transformers

import sinkscope
from sinkscope.errors import AttentionError
from sinkscope.interventions import HideTopSinks

IDS = torch.arange(3, 15)[None]


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.LlamaForCausalLM(config).eval()


def both_ways(network):
    network.config.is_causal = False
    for layer in network.model.layers:
        layer.self_attn.is_causal = False
    return network


class PaddingMaskOnly(transformers.LlamaModel):
    """As dllm writes its A2D models: attributes say causal, the mask is that of padding alone."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        whole = torch.zeros(1, 1, input_ids.shape[1], input_ids.shape[1])
        return super().forward(input_ids=input_ids, attention_mask=whole, **kwargs)


def recorded(network, out, **arguments):
    with torch.no_grad(), sinkscope.recording(network, out=out), HideTopSinks(1)(network) as hiding:
        for _ in range(3):
            network(IDS, use_cache=False, **arguments)
    return sinkscope.open_trace(out), hiding.effect


@pytest.mark.parametrize("kind", ["flag", "mask", "class"])
def test_it_is_recorded_as_a_network_that_says_so(kind, tmp_path):
    expected, effect = recorded(both_ways(llama()), tmp_path / "said")
    network, arguments = llama(), {}
    if kind == "flag":
        arguments = {"is_causal": False}
    elif kind == "mask":
        arguments = {"attention_mask": torch.ones(1, 1, IDS.shape[1], IDS.shape[1], dtype=torch.bool)}
    else:
        network.model.__class__ = PaddingMaskOnly
    found, its = recorded(network, tmp_path / "found", **arguments)
    assert found.manifest["causal"] is expected.manifest["causal"] is False
    assert set(found.tensors) == set(expected.tensors)
    for name in expected.tensors:
        np.testing.assert_allclose(getattr(found, name)[:], getattr(expected, name)[:], atol=1e-5)
    np.testing.assert_allclose(its.removed, effect.removed, atol=1e-5)


def test_a_causal_network_stays_causal(tmp_path):
    trace, _ = recorded(llama(), tmp_path / "t", attention_mask=torch.ones_like(IDS))
    assert trace.manifest["causal"] is True


def test_a_generation_that_changes_its_way_is_refused(tmp_path):
    network = llama()
    with torch.no_grad(), sinkscope.recording(network, out=tmp_path / "t"):
        network(IDS, use_cache=False)
        with pytest.raises(AttentionError, match="see later keys"):
            network(IDS, use_cache=False, is_causal=False)
