"""Layers under torch.compile: one graph without a break, no recompilation from step to step, the same recording."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from other_kernels import other_kernels
from torch._dynamo.testing import CompileCounter

import sinkscope
from sinkscope.errors import AttentionError


@pytest.fixture
def compiling(diffusion_folder):
    """The model loaded anew, as transformers leaves hooks of its own where attentions were once asked for; what counts graphs."""
    torch._dynamo.reset()
    graphs = CompileCounter()
    model = sinkscope.load(str(diffusion_folder))
    for layer in model.network.model.layers:
        layer.compile(backend=graphs, fullgraph=True)
    yield model, graphs
    torch._dynamo.reset()


def record(model, out):
    with sinkscope.recording(model, out=out):
        sinkscope.generate(model, [5, 9, 11, 7], length=8, steps=4, block=4)
    return sinkscope.open_trace(out)


def test_a_recording_is_the_same_and_no_step_compiles_anew(diffusion, compiling, tmp_path):
    model, graphs = compiling
    expected, found = record(diffusion, tmp_path / "plain"), record(model, tmp_path / "compiled")
    first = graphs.frame_count
    assert first == 2, "one graph for all layers, and one for the hook in front of them"
    assert np.array_equal(found.tokens[:], expected.tokens[:])
    for name in ("column_sums", "self_attention", "value_norms", "hidden_norms"):
        assert_close(getattr(found, name)[:], getattr(expected, name)[:], terms=terms_of(model.network, 12), what=name)
    record(model, tmp_path / "again")
    assert graphs.frame_count == first


@pytest.mark.parametrize("layers", [[1], [0, 2]], ids=str)
def test_only_some_layers_may_be_compiled(diffusion, diffusion_folder, layers, tmp_path):
    torch._dynamo.reset()
    model = sinkscope.load(str(diffusion_folder))
    for layer in layers:
        model.network.model.layers[layer].compile(backend="eager")
    expected, found = record(diffusion, tmp_path / "plain"), record(model, tmp_path / "compiled")
    torch._dynamo.reset()
    assert found.layers == expected.layers
    for name in ("column_sums", "value_norms", "hidden_norms"):
        assert_close(getattr(found, name)[:], getattr(expected, name)[:], terms=terms_of(model.network, 12), what=name)


def test_hiding_bites_in_compiled_layers(diffusion, compiling, tmp_path):
    model, _ = compiling
    written = []
    for one in (diffusion, model):
        kernels = other_kernels(one.network) if one is diffusion else nullcontext()  # a compiled layer is compiled once
        with sinkscope.HideTopSinks(k=2)(one) as hidden, kernels:
            written.append(sinkscope.generate(one, [5, 9, 11, 7], length=8, steps=8, block=8).tokens)
        assert hidden.effect.removed_share > 0
    assert torch.equal(*written)


def test_a_call_that_is_cut_off_leaves_nothing_behind(diffusion, tmp_path):
    from sinkscope.attention import Watcher, interface, subscribed

    class Impatient(Watcher):
        def watch(self, call, columns):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), subscribed(diffusion.network, Impatient()):
            sinkscope.generate(diffusion, [5, 9, 11, 7], length=4, steps=4, block=4)
        assert interface._running == []


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="needs a torch whose operators can say so")
@pytest.mark.parametrize("name", ["attention", "entering"])
def test_the_operators_keep_themselves_out_of_cuda_graphs(name):
    """A replay of the graph would run neither operator."""
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.sinkscope, name).default.tags


def test_attention_that_a_cuda_graph_captures_is_refused(diffusion, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    with pytest.raises(
        AttentionError, match=r"layers\.0\.self_attn to run in every step, found it captured in a CUDA graph"
    ):
        record(diffusion, tmp_path / "trace")
