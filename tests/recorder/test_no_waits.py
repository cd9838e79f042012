"""Inside a step nothing waits for a GPU: every rule on a simulated one, with a list of the allowed waits and their
reasons.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from simulated_gpu import SimulatedGpu, kernels_in_place
from torch.utils._python_dispatch import TorchDispatchMode

import sinkscope
from sinkscope.attention import dispatch, projections
from sinkscope.interventions import parse_rule
from sinkscope.models import FAMILIES
from sinkscope.recorder.async_writer import AsyncWriter
from sinkscope.recorder.step_recorder import Recorder

DREAM = FAMILIES["dream"]

QUEUED = """
    top:1 top:1@last_row top:1@only_sinks random:1 mass:1 persistent:1 above:3@percent window:2+5
    top:1@kv_head,keys=prompt top:1@queries=masked random:2@zero,keys=1-9
""".split()
WAITING = {
    "class:1": {("interventions/rule_context.py:make", "down"): 1},  # Python knows the classes of tokens
    "top:1@clean": {
        ("attention/session.py:unhidden_pass", "one number"): 2,  # whether the canvas is known and has padding
    },
}
"""Rule → (place, what) → how often in a step."""


@pytest.fixture
def gpu(monkeypatch):
    simulated = SimulatedGpu()
    simulated.patch(monkeypatch)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)

    attention, norms = kernels_in_place(simulated)
    monkeypatch.setattr(dispatch, "compute_by_kernels", attention)
    monkeypatch.setattr(projections, "norms_by_kernel", norms)
    return simulated


@pytest.fixture(scope="module")
def models(diffusion_folder):
    """The same network on the simulated GPU and on the CPU."""
    there = sinkscope.load(str(diffusion_folder))
    SimulatedGpu().move(there.network)
    return there, sinkscope.load(str(diffusion_folder))


def canvases(model, rows=2, steps=5):
    """One after the other with fewer masks, int64 [rows, 24]."""
    tokens = torch.randint(5, 60, (rows, 24), generator=torch.Generator().manual_seed(3))
    return [tokens.clone().masked_fill(torch.arange(24) >= 10 + 2 * step, model.card.mask_id) for step in range(steps)]


def waits_by_step(gpu, model, rule, out, keep="columns", **arguments):
    """For each step of a recording under a rule how often which place waits, and what came of the rule."""
    found = []
    with gpu, torch.no_grad():
        ready = [one.to("cuda") for one in canvases(model)]
        arguments = {name: one.to("cuda") for name, one in arguments.items()}
        with sinkscope.recording(model, out=out, keep=keep), rule(model) as running:
            for canvas in ready:
                gpu.waits.clear()
                model.network.model(input_ids=canvas, use_cache=False, **arguments)
                found.append(Counter(gpu.waits))
            effect = running.effect
    return found, effect


def same_traces(there, here, network):
    """The first ones, once all their tensors were found to be those of the others."""
    terms = terms_of(network, 24)
    for one, other in zip(sinkscope.open_traces(there), sinkscope.open_traces(here), strict=True):
        assert one.tensors == other.tensors and {"column_sums", "key_norms", "hidden_norms", "self_attention"} <= set(
            one.tensors
        )
        for name in one.tensors:
            assert_close(getattr(one, name)[:], getattr(other, name)[:], terms=terms, what=name)
        yield one


@pytest.mark.parametrize("rule", ["none", *QUEUED, *WAITING])
def test_a_step_waits_only_where_it_is_said(rule, gpu, models, tmp_path):
    waits, _ = waits_by_step(gpu, models[0], parse_rule(rule), tmp_path / "trace")
    assert waits[1:] == [WAITING.get(rule, {})] * 4, (
        "the first step opens the trace; the rule is in force from the second on"
    )


@pytest.mark.parametrize("keep", ["top", "statistics"])
def test_a_step_waits_at_no_level(keep, gpu, models, tmp_path):
    waits, _ = waits_by_step(gpu, models[0], parse_rule("top:1"), tmp_path / "trace", keep)
    assert waits[1:] == [{}] * 4


class _Launches(TorchDispatchMode):
    """Counts what a GPU computes: operators that make something other than a view or empty memory."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and function.overloadpacket not in (torch.ops.aten.empty, torch.ops.aten.empty_strided):
            self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("keep", "expected"), [("columns", ["norm kernel", "linalg_vector_norm"]), ("top", [])])
def test_the_norms_of_a_layer_are_two_launches(keep, expected, gpu, models, tmp_path, monkeypatch):
    """One of keys, values and outputs, one of hidden states; none where no norm is kept."""
    found, measure, kernel = [], Recorder._measure, projections.norms_by_kernel

    def counted(*args):
        with _Launches() as launches:
            monkeypatch.setattr(projections, "norms_by_kernel", lambda *given: noted(launches, *given))
            measured = measure(*args)
        found.append(launches.names)
        return measured

    def noted(launches, *given):
        launches.names.append("norm kernel")
        return kernel(*given)

    monkeypatch.setattr(Recorder, "_measure", counted)
    waits_by_step(gpu, models[0], parse_rule("none"), tmp_path / "trace", keep)
    layers = models[0].card.layers
    assert len(found) == 5 * layers
    assert found[layers:] == [expected] * 4 * layers, "in the first step projections are reduced"


def generate(model, out, prompts, keep="columns", **more):
    with sinkscope.recording(model, out=out, keep=keep), parse_rule("top:1")(model):
        return sinkscope.generate(model, [list(prompt) for prompt in prompts], length=8, steps=8, block=8, **more)


def test_llada_s_loop_waits_for_the_count_of_the_step_before_alone(gpu, models, tmp_path, monkeypatch):
    monkeypatch.setattr("sinkscope.decoding.blocks.row_generators", lambda seed, rows, device: [None] * rows)
    waits, prompts = [], ((5, 9, 11, 7), (8, 6, 13))

    def note(_):
        waits.append(Counter(gpu.waits))
        gpu.waits.clear()

    with gpu:
        found = generate(models[0], tmp_path / "there", prompts, on_step=note)
    expected = generate(models[1], tmp_path / "here", prompts)
    assert [one.text for one in found] == [one.text for one in expected]
    assert len(waits) == 8
    assert set().union(*waits[1:]) <= {("decoding/projection.py:most", "an event")}
    assert all(one.total() <= 1 for one in waits[1:])


def test_a_generation_is_recorded_as_on_the_cpu_however_late_its_copies_are(gpu, models, tmp_path, monkeypatch):
    monkeypatch.setattr("sinkscope.decoding.blocks.row_generators", lambda seed, rows, device: [None] * rows)
    gpu.lateness, prompts = 0.05, ((5, 9, 11, 7), (8, 6, 13))
    with gpu:
        generate(models[0], tmp_path / "there", prompts)
    generate(models[1], tmp_path / "here", prompts)
    traces = list(same_traces(tmp_path / "there", tmp_path / "here", models[1].network))
    assert [one.steps for one in traces] == [8, 8] and not gpu.spun


def test_the_largest_columns_are_those_of_the_cpu(gpu, models, tmp_path, monkeypatch):
    monkeypatch.setattr("sinkscope.decoding.blocks.row_generators", lambda seed, rows, device: [None] * rows)
    prompts = ((5, 9, 11, 7), (8, 6, 13))
    with gpu:
        generate(models[0], tmp_path / "there", prompts, "top")
    generate(models[1], tmp_path / "here", prompts, "top")
    for one, other in zip(*(sinkscope.open_traces(tmp_path / name) for name in ("there", "here")), strict=True):
        for name in one.tensors:
            np.testing.assert_array_equal(getattr(one, name)[:], getattr(other, name)[:], err_msg=name)


def test_a_step_that_is_written_over_at_once_arrives_as_it_was_sent(gpu):
    """As a replayed step does; however late the one copy is, and whatever the types of its tensors."""
    gpu.lateness, writer, arrived = 0.05, AsyncWriter(), []
    sent = {
        "bool": torch.tensor([True, False, True]),
        "half": torch.arange(5, dtype=torch.bfloat16),
        "nothing": torch.zeros(2, 0),
        "number": torch.tensor(7),
        "sums": torch.arange(12.0).view(3, 4).T,
        "host": torch.tensor([4]),
    }
    with gpu:
        for _ in range(3):
            there = {name: one.clone() if name == "host" else one.to("cuda") for name, one in sent.items()}
            gpu.waits.clear()
            writer.send(there, lambda tensors: arrived.append({name: one.clone() for name, one in tensors.items()}))
            for one in there.values():
                one.zero_()
            assert not gpu.waits
        writer.drain()
        writer.close()
    assert len(arrived) == 3
    for found in arrived:
        assert list(found) == list(sent)
        assert all(torch.equal(found[name], one) and found[name].dtype == one.dtype for name, one in sent.items())
