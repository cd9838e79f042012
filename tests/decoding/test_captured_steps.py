"""Replayed steps write, record and hide as plain ones, to the bit: on a simulated GPU, with noted operators as graphs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from recorded_ops import captures, noted, recorded_ops
from simulated_gpu import SimulatedGpu, kernels_in_place

import sinkscope
from sinkscope.attention import Watcher, dispatch, projections, subscribed
from sinkscope.decoding import captured
from sinkscope.interventions import parse_rule
from sinkscope.models import FAMILIES

PROMPTS = ((5, 9, 11, 7), (8, 6, 13))
SETTINGS = {
    "llada": {"block": 6},
    "mmada": {},
    "dream": {"algorithm": "maskgit_plus"},
    "a2d": {"block": 12},
    "open_dllm": {"algorithm": "entropy"},
}


@pytest.fixture
def gpu(monkeypatch):
    simulated = SimulatedGpu()
    simulated.patch(monkeypatch)
    attention, norms = kernels_in_place(simulated)

    def results(found):
        return [found[0], *(one for one in vars(found[1]).values() if isinstance(one, torch.Tensor))]

    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch, "compute_by_kernels", noted(attention, results))
    monkeypatch.setattr(projections, "norms_by_kernel", noted(norms, lambda found: found))
    for loop in ("blocks", "dream"):
        name = f"sinkscope.decoding.{loop}.row_generators"
        monkeypatch.setattr(name, lambda seed, rows, device: [None] * rows)
    monkeypatch.setattr(captured, "capture_on", lambda device: lambda run: recorded_ops(device, run))
    captures.clear()
    return simulated


@pytest.fixture(scope="module")
def network(diffusion_folder):
    model = sinkscope.load(str(diffusion_folder))
    SimulatedGpu().move(model.network)
    return model


def of_family(model, name):
    return replace(model, family=FAMILIES[name], card=replace(model.card, family=name))


def written(gpu, model, out, rule="none", keep="columns", graphs=True, prompts=PROMPTS, **settings):
    """What a generation gave, step by step, and the effect of the rule."""
    steps = []

    def note(step):
        steps.append([one.cpu().numpy() for one in (step.tokens, step.written, step.confidence)])

    settings = {"length": 12, "steps": 12, **SETTINGS[model.family.name], **settings}
    with gpu:
        rules = parse_rule(rule)
        with sinkscope.recording(model, out=out, keep=keep), rules(model) as hiding:
            found = sinkscope.generate(
                model, [list(one) for one in prompts], on_step=note, graphs=graphs, **settings
            )
        return found, steps, hiding.effect


def same_traces(there, here):
    traces = [sinkscope.open_traces(folder) for folder in (there, here)]
    assert len(traces[0]) == len(traces[1]) == len(PROMPTS)
    for one, other in zip(*traces, strict=True):
        assert one.tensors == other.tensors and one.steps == other.steps >= 8
        for name in one.tensors:
            assert np.array_equal(getattr(one, name)[:], getattr(other, name)[:], equal_nan=True), name


def same(one, other):
    (found, steps, effect), (_, plain, expected) = one, other
    assert {generation.graphs for generation in found} == {"used"}
    assert len(steps) == len(plain) >= 8
    for mine, theirs in zip(steps, plain, strict=True):
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(mine, theirs, strict=True))
    for name, values in vars(expected).items():
        assert np.array_equal(getattr(effect, name), values) if isinstance(values, np.ndarray) else True, name


@pytest.mark.parametrize("family", SETTINGS)
@pytest.mark.parametrize("rule", ["none", "top:1", "top:1@current", "random:1"])
def test_replayed_steps_are_the_plain_ones(family, rule, gpu, network, tmp_path):
    model = of_family(network, family)
    replayed = written(gpu, model, tmp_path / "there", rule)
    same(replayed, written(gpu, model, tmp_path / "here", rule, graphs=False))
    same_traces(tmp_path / "there", tmp_path / "here")
