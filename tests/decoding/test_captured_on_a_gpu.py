"""On a GPU: replayed steps write, record and hide as plain ones, to the bit."""

import numpy as np
import pytest
import torch

import sinkscope

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "rule", ["none", "top:1", "top:1@current", "random:1", "persistent:1", "rowmass:1@current", "window:2+5"]
)
def test_replayed_steps_are_the_plain_ones(rule, dtype, tmp_path):
    model = sinkscope.load("lab-diffusion", dtype=dtype, device="cuda")
    prompts, found, effects = [list(range(5, 25)), list(range(30, 41))], [], []
    for graphs in (True, False):
        steps = []
        with sinkscope.recording(model, out=tmp_path / str(graphs)), sinkscope.parse_rule(rule)(model) as hiding:
            written = sinkscope.generate(
                model,
                prompts,
                length=16,
                steps=16,
                block=16,
                graphs=graphs,
                on_step=lambda one, to=steps: to.append(one),
            )
        assert {one.graphs for one in written} == {"used" if graphs else "off"}
        found.append([(one.tokens.cpu(), one.confidence.cpu().nan_to_num(-1)) for one in steps])
        effects.append(hiding.effect)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert np.array_equal(effects[0].removed, effects[1].removed)
    for one, other in zip(*(sinkscope.open_traces(tmp_path / name) for name in ("True", "False")), strict=True):
        for name in one.tensors:
            assert np.array_equal(getattr(one, name)[:], getattr(other, name)[:], equal_nan=True), name


def test_a_capture_that_fails_leaves_the_device_usable(monkeypatch):
    """Whatever the driver makes of it: the generation goes on, and so do random numbers and the current stream."""
    from sinkscope.decoding import captured

    def fails(device):
        def capture(run):
            def waits():
                made = run()
                torch.cuda.synchronize()
                return made

            return captured.cuda_graph(device, waits)

        return capture

    model = sinkscope.load("lab-diffusion", device="cuda")
    expected = sinkscope.generate(model, [5, 9, 11], length=8, graphs=False)
    before = torch.cuda.current_stream()
    monkeypatch.setattr(captured, "capture_on", fails)
    found = sinkscope.generate(model, [5, 9, 11], length=8, graphs=True)
    assert found.graphs == "failed" and found.text == expected.text
    assert torch.cuda.current_stream() == before and torch.rand(3, device="cuda").shape == (3,)
