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
    """The model loaded anew, as transformers leaves hooks of its own where attentions were once asked for; what counts
    graphs.
    """
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


def test_hiding_bites_in_compiled_layers(diffusion, compiling, tmp_path):
    model, _ = compiling
    written = []
    for one in (diffusion, model):
        kernels = other_kernels(one.network) if one is diffusion else nullcontext()  # a compiled layer is compiled once
        with sinkscope.HideTopSinks(k=2)(one) as hidden, kernels:
            written.append(sinkscope.generate(one, [5, 9, 11, 7], length=8, steps=8, block=8).tokens)
        assert hidden.effect.removed_share > 0
    assert torch.equal(*written)


def test_attention_that_a_cuda_graph_captures_is_refused(diffusion, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    with pytest.raises(AttentionError, match="to run in every step, found it captured in a CUDA graph"):
        record(diffusion, tmp_path / "trace")
