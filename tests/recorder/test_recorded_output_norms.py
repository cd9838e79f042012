"""‖W_O v‖ of every key, against the product with the whole output projection, one head and key at a time."""

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from test_any_model import IDS, qwen3

import sinkscope
from sinkscope.attention import Watcher, output_norms, output_projection, subscribed
from sinkscope.attention.projections import reduced
from sinkscope.models import add_sink_token

PROMPTS = [[5, 30, 31, 32, 40, 41, 7], [5, 30, 31, 7]]


class Values(Watcher):
    """Keeps the values that every layer reads, a dict for each step."""

    def __init__(self):
        self.steps = []

    def begin_step(self, context):
        self.steps.append({})

    def watch(self, call, columns):
        self.steps[-1][call.name] = (call.value.clone(), call.query.shape[1])


def dense(network, name, value, heads):
    """[batch, head, key]: the head's columns of W_O times each value."""
    module = network.get_submodule(name)
    found = next(one for one in ("o_proj", "out_proj", "c_proj") if hasattr(module, one))
    weight = getattr(module, found).weight.detach()
    weight = weight.T if found == "c_proj" else weight
    dim, shared = value.shape[-1], heads // value.shape[1]
    parts = weight.unflatten(1, (heads, dim)).transpose(0, 1)
    return torch.stack([(value[:, head // shared] @ parts[head].T).norm(dim=-1) for head in range(heads)], 1)


def check(network, traces, steps, first_step=0):
    """Every tensor of every trace against the values that the network read."""
    for row, trace in enumerate(traces):
        assert trace.output_norms.axes == ("step", "layer", "head", "position")
        for step in range(trace.steps):
            length = int(trace.lengths[step])
            for number, name in enumerate(trace.layers):
                value, heads = steps[first_step + step][name]
                expected = dense(network, name, value, heads)[row]
                held = min(length, expected.shape[-1])
                found = trace.output_norms[step, number]
                assert_close(found[:, length - held : length], expected[:, -held:], terms=terms_of(network, 64))
                assert np.isnan(found[:, length:]).all() and not np.isnan(found[:, :length]).any()


def recorded(network, out, run):
    with subscribed(network, seen := Values()), sinkscope.recording(network, out=out):
        run()
    return sinkscope.open_traces(out), seen.steps


@pytest.mark.parametrize("name", ["diffusion", "autoregressive"])
def test_a_batch_with_padding(request, name, tmp_path):
    model = request.getfixturevalue(name)
    more = {} if model.family.causal else {"block": 4}
    with subscribed(model.network, seen := Values()), sinkscope.recording(model, out=tmp_path / "t"):
        sinkscope.generate(model, PROMPTS, length=8, **more)
    traces = sinkscope.open_traces(tmp_path / "t")
    check(model.network, traces, seen.steps)
    values = traces[0].value_norms[0, :, :, : traces[0].lengths[0]]
    shared = traces[0].heads // values.shape[1]
    assert not np.allclose(traces[0].output_norms[0][..., : values.shape[-1]], values.repeat(shared, axis=1), rtol=0.05)


@pytest.mark.parametrize("variant", ["token-4", "logit"])
def test_networks_with_a_sink(diffusion_folder, variant, tmp_path):
    """Their own constant keys stand apart, and a gate is left out."""
    model = sinkscope.load(str(diffusion_folder))
    network = add_sink_token(model.network, variant)
    traces, steps = recorded(network, tmp_path / "t", lambda: network(torch.tensor(PROMPTS[:1])))
    check(network, traces, steps)
    assert traces[0].output_norms.shape[-1] == len(PROMPTS[0])


def test_weights_that_change_are_seen(diffusion_folder, tmp_path):
    model = sinkscope.load(str(diffusion_folder))
    tokens = torch.tensor(PROMPTS[:1])
    with torch.no_grad(), sinkscope.recording(model, out=tmp_path / "t"):
        model.network(tokens)
        for layer in model.network.model.layers:
            layer.self_attn.o_proj.weight.mul_(2)
        model.network(tokens)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert_close(trace.output_norms[1, 0], 2 * trace.output_norms[0, 0], terms=terms_of(model.network, 64))


@pytest.mark.parametrize("width", [40, 3])
def test_output_norms_of_any_layout(width):
    generator = torch.Generator().manual_seed(0)
    value, weight = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(width, 6 * 4, generator=generator)
    attention = torch.nn.Module()
    attention.o_proj = torch.nn.Linear(6 * 4, width)
    attention.o_proj.weight = torch.nn.Parameter(weight)
    projection = output_projection(attention, 6)
    for one in (projection, reduced(projection)):
        found = output_norms(value, one)
        assert found.shape == (2, 6, 5) and not found.requires_grad
        for batch, head, key in np.ndindex(2, 6, 5):
            expected = torch.linalg.vector_norm(weight[:, 4 * head : 4 * head + 4] @ value[batch, head // 2, key])
            torch.testing.assert_close(found[batch, head, key], expected)


class Adapter(torch.nn.Module):
    """A linear layer with an adapter beside it, whose ``weight`` is that of the layer alone, as those of peft."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.added = layer, torch.nn.Linear(layer.in_features, layer.out_features)

    @property
    def weight(self):
        return self.layer.weight

    def forward(self, x):
        return self.layer(x) + self.added(x)


@torch.no_grad()
def test_an_adapter_is_not_taken_for_its_layer(tmp_path):
    network = qwen3().eval()
    attention = network.model.layers[1].self_attn
    attention.o_proj = Adapter(attention.o_proj)
    assert output_projection(attention, 6) is None
    with sinkscope.recording(network, out=tmp_path / "run"):
        network(IDS)
    for trace in sinkscope.open_traces(tmp_path / "run"):
        assert "output_norms" not in trace.tensors
