"""‖W_O v‖ of every key, against the product with the whole output projection, one head and key at a time."""

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close, terms_of
from test_any_model import IDS, PADDED, gemma3, gpt2, qwen3

import sinkscope
from sinkscope.attention import OutputProjections, Watcher, foreign, output_norms, output_projection, subscribed
from sinkscope.attention.projections import reduced
from sinkscope.errors import AttentionError
from sinkscope.models.sink_token import add_sink_token
from sinkscope.statistics import Threshold, summarise

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
    return torch.stack(
        [(value[:, head // shared] @ weight[:, head * dim : (head + 1) * dim].T).norm(dim=-1) for head in range(heads)],
        1,
    )


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


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("make", [gpt2, qwen3, gemma3])
def test_other_families_under_their_own_generate(make, cached, tmp_path):
    """Transposed weights, grouped queries, sliding windows."""
    torch.manual_seed(0)
    network = make().eval()
    options = {"attention_mask": PADDED, "max_new_tokens": 4, "do_sample": False, "use_cache": cached}
    check(network, *recorded(network, tmp_path / "t", lambda: network.generate(IDS, **options)))


def test_an_encoder_and_a_decoder(tmp_path):
    torch.manual_seed(0)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=24,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        decoder_start_token_id=7,
        forced_eos_token_id=None,
        **shape,
    )
    network = transformers.BartForConditionalGeneration(config).eval()
    options = {"max_new_tokens": 3, "do_sample": False, "num_beams": 1}
    traces, steps = recorded(network, tmp_path / "t", lambda: network.generate(IDS, **options))
    assert [trace.manifest["attends_to"] for trace in traces[::2]] == [
        "model.encoder",
        "model.decoder",
        "model.encoder",
    ]
    for first in (0, 2, 4):
        check(network, traces[first : first + 2], steps, first_step=0 if first == 0 else 1)


@pytest.mark.parametrize("variant", ["token", "token-4", "logit", "gate"])
def test_networks_with_a_sink(diffusion_folder, variant, tmp_path):
    """Their own constant keys stand apart, and a gate is left out."""
    model = sinkscope.load(str(diffusion_folder))
    network = add_sink_token(model.network, variant)
    traces, steps = recorded(network, tmp_path / "t", lambda: network(torch.tensor(PROMPTS[:1])))
    check(network, traces, steps)
    assert traces[0].output_norms.shape[-1] == len(PROMPTS[0])


def test_behind_a_cache_only_new_keys_are_computed(autoregressive, tmp_path, monkeypatch):
    from sinkscope.attention import projections as module

    asked, compute = [], module.output_norms
    monkeypatch.setattr(
        module, "output_norms", lambda value, *more: asked.append(value.shape[2]) or compute(value, *more)
    )
    with sinkscope.recording(autoregressive, out=tmp_path / "t"):
        sinkscope.generate(autoregressive, PROMPTS[0], length=4)
        sinkscope.generate(autoregressive, PROMPTS[1], length=2)
    assert asked == [7] * 3 + [1] * 9 + [4] * 3 + [1] * 3


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


class Foreign(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.project, self.mix = (
            torch.nn.Embedding(50, 12),
            torch.nn.Linear(12, 36),
            torch.nn.Linear(12, 12),
        )

    def forward(self, ids):
        query, key, value = self.project(self.embed(ids)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        return self.mix(torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


def test_where_the_projection_is_not_understood_there_is_no_such_tensor(tmp_path):
    network = Foreign().eval()
    with foreign(network), torch.no_grad(), sinkscope.recording(network, out=tmp_path / "t"):
        network(IDS[:1])
    trace = sinkscope.open_trace(tmp_path / "t")
    assert "output_norms" not in trace.tensors and "value_norms" in trace.tensors


def test_a_trace_without_them_stays_readable(diffusion, tmp_path, monkeypatch):
    """As traces were before."""
    monkeypatch.setattr(OutputProjections, "_reduced", lambda *given: None)
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, PROMPTS[0], length=4)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert "output_norms" not in trace.tensors
    assert sinkscope.find_sinks(trace) is not None and summarise(trace, [Threshold(3.0)]).steps == 4
    assert not any("output" in one.name for one in sinkscope.analyse([trace]).statistics)


def module_of(weight):
    module = torch.nn.Module()
    module.o_proj = torch.nn.Module()
    module.o_proj.weight = weight
    return module


@pytest.mark.parametrize("width", [40, 7, 3])
def test_output_norms_of_any_layout(width):
    generator = torch.Generator().manual_seed(0)
    value, weight = torch.randn(2, 3, 5, 4, generator=generator), torch.randn(width, 6 * 4, generator=generator)
    projection = output_projection(module_of(torch.nn.Parameter(weight)), 6)
    for one in (projection, reduced(projection)):
        found = output_norms(value, one)
        assert found.shape == (2, 6, 5) and not found.requires_grad
        for batch, head, key in np.ndindex(2, 6, 5):
            expected = torch.linalg.vector_norm(weight[:, 4 * head : 4 * head + 4] @ value[batch, head // 2, key])
            torch.testing.assert_close(found[batch, head, key], expected)


def test_a_value_that_the_projection_nearly_removes_keeps_its_digits():
    """A Gram matrix would lose them: it squares."""
    left, right = (torch.linalg.qr(torch.randn(size, 4, dtype=torch.float64)).Q for size in (9, 4))
    weight = (left * torch.tensor([1.0, 0.5, 0.1, 1e-4])) @ right.T
    value = right[:, 3].float()[None, None, None]
    found = output_norms(value, reduced(weight.float()[None]))
    assert float(found) == pytest.approx(float((weight.float().double() @ value[0, 0, 0].double()).norm()), rel=1e-2)
    gram = weight.float().T @ weight.float()
    assert float((value[0, 0, 0] @ gram @ value[0, 0, 0]).clamp(min=0).sqrt()) != pytest.approx(float(found), rel=1e-2)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            torch.nn.Module(),
            "expected the output projection of Module as a plain linear layer .* names o_proj, .*, found NoneType",
        ),
        (module_of(torch.zeros(8, 12, dtype=torch.int8)), "as a plain linear layer of 16 bits or more"),
        (module_of(torch.zeros(8, 12, device="meta")), "as a plain linear layer of 16 bits or more"),
        (module_of(torch.zeros(8, 13)), "expected an output projection from 6 heads, found 13 columns in it"),
    ],
)
def test_what_is_no_output_projection_is_told(module, message):
    with pytest.raises(AttentionError, match=message):
        output_projection(module, 6)


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
    with pytest.raises(AttentionError, match=r"of Qwen3Attention as a plain linear layer .* found Adapter; .*merge"):
        output_projection(attention, 6)
    with sinkscope.recording(network, out=tmp_path / "run"):
        network(IDS)
    for trace in sinkscope.open_traces(tmp_path / "run"):
        assert "output_norms" not in trace.tensors
