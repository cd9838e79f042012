"""A recording whose steps are written by the thread, as on a GPU: the same trace, the same refusals."""

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of

import sinkscope
from sinkscope.errors import AttentionError
from sinkscope.recorder import step_recorder
from sinkscope.recorder.async_writer import AsyncWriter

SETTINGS = {"length": 8, "steps": 4, "block": 4}


@pytest.fixture
def threaded(monkeypatch):
    monkeypatch.setattr(step_recorder, "AsyncWriter", lambda: AsyncWriter(threaded=True, room=20_000))


def record(model, out, keep="columns"):
    with sinkscope.recording(model, out=out, keep=keep):
        sinkscope.generate(model, [[5, 9, 11, 7], [8, 6]], **SETTINGS)
        sinkscope.generate(model, [7, 6, 5], **SETTINGS)
    return sinkscope.open_traces(out)


def test_what_waits_for_its_part_is_bounded_over_all_prompts(diffusion, tmp_path, monkeypatch, threaded):
    expected, waiting, land = record(diffusion, tmp_path / "plain"), [], step_recorder.Recorder._write_step

    def landed(self, rows, *more):
        land(self, rows, *more)
        waiting.append(sum(row.writer.held for row in rows.values()))

    monkeypatch.setattr(step_recorder.Recorder, "_write_step", landed)
    monkeypatch.setattr(step_recorder, "MOST_HELD", 15_000)
    found = record(diffusion, tmp_path / "bounded")
    assert len(waiting) == 8 and 5_000 < max(waiting) <= 15_000
    assert [len(one.manifest["parts"]) for one in expected] == [1, 1, 1] and len(found[0].manifest["parts"]) > 1
    for one, other in zip(found, expected, strict=True):
        one.verify()
        assert np.array_equal(one.column_sums[:], other.column_sums[:], equal_nan=True)


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_nan_in_attention_is_told_and_the_trace_says_incomplete(in_a_thread, diffusion, tmp_path, monkeypatch):
    if in_a_thread:
        monkeypatch.setattr(step_recorder, "AsyncWriter", lambda: AsyncWriter(threaded=True))
    monkeypatch.setattr(
        "sinkscope.decoding.projection.check_finite", lambda logits: logits
    )  # which would find it first
    spoiled, count = diffusion.network.model.layers[1].self_attn, []

    def spoil(module, args, output):
        count.append(1)
        if len(count) == 3:
            output = output.clone()
            output[..., 8:16] = torch.nan  # of the second of five heads
        return output

    handle = spoiled.q_proj.register_forward_hook(spoil)
    try:
        with (
            pytest.raises(
                AttentionError,
                match=r"in step 2, found NaN in the attention, first in layer model\.layers\.1\.self_attn, head 1",
            ),
            sinkscope.recording(diffusion, out=tmp_path / "trace"),
        ):
            sinkscope.generate(diffusion, [5, 9, 11, 7], **SETTINGS)
    finally:
        handle.remove()
    trace = sinkscope.open_trace(tmp_path / "trace")
    assert trace.manifest["complete"] is False and trace.steps == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", ["none", "top:1", "window:2+5"])
def test_steps_on_a_gpu_are_recorded_as_on_the_cpu_however_slow_both_streams_are(rule, tmp_path, monkeypatch):
    """Layers are stacked late and each copy begins late behind that: what is read too early, or given back, differs."""
    stack = step_recorder.stack_layers

    def late(*given):
        torch.cuda._sleep(50_000_000)  # cycles
        return stack(*given)

    class Slow(torch.cuda.Stream):
        def wait_stream(self, stream):
            super().wait_stream(stream)
            with torch.cuda.stream(self):
                torch.cuda._sleep(5_000_000)

    tokens, traces = torch.randint(5, 300, (2, 40), generator=torch.Generator().manual_seed(3)), []
    for device in ("cpu", "cuda"):
        model = sinkscope.load("lab-diffusion", dtype="float32", device=device)
        if device == "cuda":
            monkeypatch.setattr(step_recorder, "stack_layers", late)
            monkeypatch.setattr(torch.cuda, "Stream", Slow)
        with sinkscope.recording(model, out=tmp_path / device), sinkscope.parse_rule(rule)(model), torch.no_grad():
            for step in range(12):  # canvases are given: a sampler may break a tie of two confidences in another way
                canvas = tokens.masked_fill(torch.arange(40) >= 28 + step, model.card.mask_id)
                model.network.model(input_ids=canvas.to(device), use_cache=False)
        traces.append(sinkscope.open_traces(tmp_path / device))
    for here, there in zip(*traces, strict=True):
        assert there.tensors == here.tensors and there.steps == 12 and there.manifest["complete"]
        for name in here.tensors:
            assert_close(getattr(there, name)[:], getattr(here, name)[:], terms=terms_of(model.network, 40), what=name)
