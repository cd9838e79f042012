"""Replayed steps write, record and hide as plain ones, to the bit: on a simulated GPU, operators noted as a graph."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from random_models import TINY, save_random_model
from recorded_ops import RecordedOps, captures, noted, recorded_ops
from simulated_gpu import SimulatedGpu, kernels_in_place
from torch.utils._pytree import tree_leaves

import sinkscope
from sinkscope.attention import Watcher, call, dispatch, projections, subscribed
from sinkscope.decoding import captured, projection
from sinkscope.decoding.captured import QueueingOnly
from sinkscope.interventions import parse_rule
from sinkscope.interventions.hiding import Hiding
from sinkscope.models import FAMILIES

PROMPTS = ((5, 9, 11, 7), (8, 6, 13))
SETTINGS = {
    "llada": {"block": 3},
    "mmada": {},
    "dream": {"algorithm": "maskgit_plus"},
    "a2d": {},
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
    monkeypatch.setattr(captured, "capture_on", lambda device: partial(recorded_ops, device))
    captures.clear()
    return simulated


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "two-layers"
    model = sinkscope.load(str(save_random_model(folder, "lab-diffusion", replace(TINY, layers=2))))
    SimulatedGpu().move(model.network)
    return model


def of_family(model, name):
    return replace(model, family=FAMILIES[name], card=replace(model.card, family=name))


def written(gpu, model, out, rule="none", keep="columns", graphs=True, batches=(PROMPTS,), **settings):
    """What generations of one recording gave, step by step, and the effect of the rule."""
    steps, found = [], []

    def note(step):
        steps.append([one.cpu().numpy() for one in (step.tokens, step.written, step.confidence)])

    settings = {"length": 9, "steps": 9, **SETTINGS[model.family.name], **settings}
    with gpu:
        with sinkscope.recording(model, out=out, keep=keep), parse_rule(rule)(model) as hiding:
            for prompts in batches:
                texts = [list(one) for one in prompts]
                found += sinkscope.generate(model, texts, on_step=note, graphs=graphs, **settings)
        return found, steps, hiding.effect


def same_traces(there, here):
    traces = [sinkscope.open_traces(folder) for folder in (there, here)]
    assert len(traces[0]) == len(traces[1]) >= len(PROMPTS)
    for one, other in zip(*traces, strict=True):
        assert one.tensors == other.tensors and one.steps == other.steps >= 8
        for name in one.tensors:
            assert np.array_equal(getattr(one, name)[:], getattr(other, name)[:], equal_nan=True), name


def same(one, other, word="used"):
    (found, steps, effect), (plain, expected, known) = one, other
    assert {generation.graphs for generation in found} == {word} and {one.graphs for one in plain} == {"off"}
    assert len(steps) == len(expected) >= 8
    for mine, theirs in zip(steps, expected, strict=True):
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(mine, theirs, strict=True))
    for name, values in vars(known).items():
        assert not isinstance(values, np.ndarray) or np.array_equal(getattr(effect, name), values), name
    assert effect.without_effect == known.without_effect


CASES = [
    ("llada", "none", {}),
    ("llada", "top:1@current", {}),
    ("llada", "random:1", {"guidance": 1.0}),
    ("llada", "persistent:1", {}),
    ("llada", "top:1@steps=2-7", {}),
    ("llada", "position:0", {}),
    ("llada", "rowmass:1@current", {}),
    ("mmada", "top:1", {}),
    ("dream", "random:1", {}),
    ("a2d", "top:1", {}),
    ("open_dllm", "top:1@keys=unmasked", {}),
]


@pytest.mark.parametrize(("family", "rule", "settings"), CASES)
def test_replayed_steps_write_record_and_hide_as_plain_ones(family, rule, settings, gpu, network, tmp_path):
    model = of_family(network, family)
    replayed = written(gpu, model, tmp_path / "there", rule, **settings)
    same(replayed, written(gpu, model, tmp_path / "here", rule, graphs=False, **settings))
    same_traces(tmp_path / "there", tmp_path / "here")


@pytest.mark.parametrize("keep", ["top", "statistics"])
def test_levels_and_a_last_smaller_batch(keep, gpu, network, tmp_path):
    batches, folders = (PROMPTS, PROMPTS[:1]), (tmp_path / "there", tmp_path / "here")
    there, here = (
        written(gpu, network, out, "top:1", keep, graphs, batches)
        for out, graphs in zip(folders, (True, False), strict=True)
    )
    same(there, here)
    assert len(captures) == 2
    if keep == "top":
        same_traces(*folders)
    else:
        name = "statistics.safetensors"
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


class _Noting(QueueingOnly):
    """Notes operators with the shapes of their tensors; none may wait."""

    def __init__(self, device):
        super().__init__(device)
        self.sequence = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
        self.sequence.append((str(function), [(one.shape, one.stride(), one.dtype) for one in tensors]))
        return super().__torch_dispatch__(function, types, args, kwargs)


@pytest.mark.parametrize("rule", ["none", "top:1@current", "top:1", "random:1"])
def test_every_step_queues_the_same_operators(rule, gpu, network, monkeypatch, tmp_path):
    """What a graph needs: after the first steps the same operators on the same shapes, and no wait among them."""
    sequences, plain = [], projection.stored_call

    def noting(*args):
        with _Noting(network.device) if len(sequences) > 1 else nullcontext() as mode:
            found = plain(*args)
        sequences.append(mode and mode.sequence)
        return found

    monkeypatch.setattr(projection, "stored_call", noting)
    written(gpu, network, tmp_path / "trace", rule, graphs=False)
    assert len(sequences) == 9 and len(sequences[-1]) > 100
    assert all(one == sequences[2] for one in sequences[3:])


@pytest.mark.parametrize(("rule", "in_a_layer", "at_the_end"), [("top:1", 10, 75), ("random:1", 32, 75)])
def test_a_rule_adds_few_launches(rule, in_a_layer, at_the_end, gpu, network, monkeypatch, tmp_path):
    """In a layer what it chooses by; its effect is counted once for all layers."""
    plain, counted = Hiding.end_step, []

    def noting(*args):
        with RecordedOps() as ops:
            plain(*args)
        counted.append(launches(function for function, *_ in ops.ran))

    monkeypatch.setattr(Hiding, "end_step", noting)
    in_a_step = {}
    for one in ("none", rule):
        written(gpu, network, tmp_path / one, one)
        in_a_step[one] = launches(function for function, *_ in captures[-1].ran)
    added, layers = in_a_step[rule] - in_a_step["none"], network.card.layers
    assert layers < added <= layers * in_a_layer
    assert 10 < max(counted) <= at_the_end


def launches(functions):
    """How many operators make something other than a view or empty memory."""
    empty = (torch.ops.aten.empty, torch.ops.aten.empty_strided)
    return sum(
        not getattr(one, "is_view", False) and getattr(one, "overloadpacket", one) not in empty for one in functions
    )


class _Watching(Watcher):
    def __init__(self):
        self.layers = 0

    def watch(self, call, columns):
        self.layers += 1


class _Reading(torch.nn.Module):
    """A network's own module that reads from the device."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * (1.0 if x.sum().item() > 0 else -1.0)


@pytest.mark.parametrize("rule", ["class:1", "top:1@clean"])
def test_rules_that_read_on_the_host_run_plainly(rule, gpu, network, tmp_path):
    with_graphs = written(gpu, network, tmp_path / "there", rule)
    same(with_graphs, written(gpu, network, tmp_path / "here", rule, graphs=False), "watched")


def test_another_s_watcher_sees_every_layer_of_every_step(gpu, network, tmp_path):
    watcher = _Watching()
    with subscribed(network.network, watcher):
        found, steps, _ = written(gpu, network, tmp_path / "trace")
    assert found[0].graphs == "watched" and watcher.layers == 2 * len(steps)


def test_a_hook_of_another_runs_in_every_step(gpu, network, tmp_path):
    ran = []
    handle = network.network.model.layers[1].register_forward_hook(lambda *called: ran.append(1))
    try:
        found, steps, _ = written(gpu, network, tmp_path / "trace")
    finally:
        handle.remove()
    assert found[0].graphs == "hooks" and len(ran) == len(steps)


def test_a_network_that_reads_its_tensors_runs_plainly(gpu, network, tmp_path):
    layer = network.network.model.layers[0]
    layer.mlp = _Reading(layer.mlp)
    try:
        found = written(gpu, network, tmp_path / "there", "top:1")
        same(found, written(gpu, network, tmp_path / "here", "top:1", graphs=False), "waits")
    finally:
        layer.mlp = layer.mlp.inner
    same_traces(tmp_path / "there", tmp_path / "here")


def _fails(device, run):
    run()
    raise RuntimeError("no capture")


def _replays_nothing(device, run):
    return recorded_ops(device, run)[0], lambda: None


@pytest.mark.parametrize(("capture", "word"), [(_fails, "failed"), (_replays_nothing, "differs")])
def test_a_capture_that_fails_or_replays_something_else_leaves_plain_steps(
    capture, word, gpu, network, monkeypatch, tmp_path
):
    monkeypatch.setattr(captured, "capture_on", lambda device: partial(capture, device))
    found = written(gpu, network, tmp_path / "there", "top:1")
    same(found, written(gpu, network, tmp_path / "here", "top:1", graphs=False), word)
    same_traces(tmp_path / "there", tmp_path / "here")


def test_a_cpu_runs_plainly(diffusion):
    assert sinkscope.generate(diffusion, [5, 9], length=4, graphs=True).graphs == "cpu"


@pytest.mark.parametrize("settings", [{}, {"guidance": 1.0}])
def test_a_mask_of_padding_is_one_row_of_keys_for_all_queries(settings, diffusion, monkeypatch):
    """Kernels then read a tile's keys once, and no mask of queries × keys is made in any step."""
    masks, compute = [], call.compute

    def spied(inputs, **more):
        masks.append(inputs.mask)
        return compute(inputs, **more)

    monkeypatch.setattr(call, "compute", spied)
    with subscribed(diffusion.network, _Watching()):
        sinkscope.generate(diffusion, [list(one) for one in PROMPTS], length=6, steps=3, block=6, **settings)
    assert len(masks) == 3 * diffusion.card.layers and {one.stride(2) for one in masks} == {0}
    assert {one.shape[2] for one in masks} == {max(map(len, PROMPTS)) + 6}


def test_memory_of_expanded_tensors_is_filled_once():
    """A leaf whose entries share memory, as a mask of padding, may be another tensor in every step."""
    rows = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[:, None].expand(2, 4, 3)
    place = captured._memory_of(rows)
    captured.fill([place, None], [rows, 7])
    assert torch.equal(place, rows) and place.stride() == rows.stride() and place.data_ptr() != rows.data_ptr()
