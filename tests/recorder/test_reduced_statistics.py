"""What statistics need of a step, reduced on the device, is what NumPy makes of whole columns."""

import copy
import json
import sys
import zlib
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from simulated_gpu import SimulatedGpu, kernels_in_place

sys.path.append(str(Path(__file__).parents[1] / "decoding"))

from seeded_models import seeded_model

import sinkscope
from sinkscope.attention import dispatch, projections
from sinkscope.errors import AttentionError
from sinkscope.recorder import reduced_statistics as module
from sinkscope.recorder.async_writer import AsyncWriter
from sinkscope.recorder.reduced_statistics import reduce_statistics
from sinkscope.recorder.step_tensors import check_numbers
from sinkscope.statistics import PromptSettings, Summary, all_statistics
from sinkscope.statistics.reduced_step import can_be_reduced, counted_step
from sinkscope.traces import read_statistics

LAYERS, HEADS = 3, 4
THRESHOLDS = Summary.thresholds()
PROMPTS = ((5, 9, 11, 7), (8, 6, 13), (30, 31, 32, 33, 34, 35))
"""Rows of one batch, so that two are padded."""


def prompt_arrays(length, seed, kv_heads=2, queries=None, ties=False):
    """A step of one prompt: the first half is the prompt, the last quarter masked; the newest ``queries`` look."""
    rng, shape = np.random.default_rng(seed), (LAYERS, HEADS, length)
    sums = np.exp(1.3 * rng.normal(size=shape))
    sums[0, :, 1] *= 40
    sums *= (queries or length) / sums.sum(-1, keepdims=True)
    sums = np.round(4 * sums) / 4 + 0.03 * (np.arange(length) == 2) if ties else sums  # else some are at their mean
    masked = np.arange(length) >= length * 3 // 4
    by_masked, by_prompt = rng.random(shape) * 0.6, rng.random(shape) * 0.4
    found = {
        "column_sums": sums,
        "column_sums_masked": sums * by_masked,
        "column_sums_prompt": sums * by_prompt,
        "self_attention": rng.random(shape),
        "value_norms": rng.random((LAYERS, kv_heads, length)),
        "key_norms": rng.random((LAYERS, kv_heads, length)).round(1),
        "hidden_norms": rng.random((LAYERS, length)),
        "output_norms": rng.random(shape),
    }
    found = {name: one.astype(np.float32) for name, one in found.items()}
    if queries:
        for name in ("self_attention", "hidden_norms", "output_norms"):
            found[name][..., : length - queries] = np.nan
    return found | {"tokens": rng.integers(0, 9, length), "masked": masked.astype(np.uint8)}


def stacked(rows, without=()):
    """The tensors of a batch whose rows are padded on the left with anything but what is expected."""
    width = max(len(row["tokens"]) for row in rows)
    found = {}
    for name in (one for one in rows[0] if one not in ("tokens", *without)):
        one = [
            np.pad(row[name], [(0, 0)] * (row[name].ndim - 1) + [(width - len(row["tokens"]), 0)], constant_values=1)
            for row in rows
        ]
        found[name] = torch.from_numpy(np.stack(one, axis=1 if one[0].ndim > 1 else 0))
    return found, found.pop("masked") > 0, torch.tensor([len(row["tokens"]) for row in rows])


def whole_step(row, settings, without=()):
    return Summary.feed(settings)._counted({name: one for name, one in row.items() if name not in without})


def assert_same(found, expected, terms, what=""):
    """Whole numbers are equal, others to their rounding, wherever they are."""
    if is_dataclass(expected):
        for name in (one.name for one in fields(expected)):
            assert_same(getattr(found, name), getattr(expected, name), terms, f"{what}.{name}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, terms, f"{what}[{number}]")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert_same(found.item(), expected.item(), terms, what)
    elif isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
        assert_close(found, expected, terms=terms, dtype=torch.float32, what=what)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


def by_kind(step, bins=256):
    """Records in the order of their names, and as many quarters as are kept."""
    step = vars(step) | {"records": sorted(step.records, key=lambda one: type(one).__name__)}
    near = step["quarters"][:, :bins]
    return list((step | {"quarters": np.pad(near, [(0, 0), (0, bins - near.shape[1])])}).values())


CASES = {
    "one prompt": ((37,), {}),
    "padded": ((37, 12, 130, 64), {}),
    "a head of keys for each": ((20, 33), {"kv_heads": HEADS}),
    "ties": ((40, 24), {"ties": True}),
    "behind a cache": ((48,), {"queries": 20}),
}


@pytest.mark.parametrize("at_once", [1 << 22, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_reduced_step_is_counted_as_the_whole_one(case, at_once, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    lengths, more = CASES[case]
    compare([prompt_arrays(length, seed, **more) for seed, length in enumerate(lengths)])


@pytest.mark.parametrize("without", ["output_norms", "hidden_norms"])
def test_a_norm_that_was_not_recorded_is_not_counted(without):
    compare([prompt_arrays(30, 1), prompt_arrays(22, 2)], without=[without])


def compare(rows, without=()):
    step, masked, lengths = stacked(rows, without)
    reduced = reduce_statistics(step, masked, lengths, lengths // 2, THRESHOLDS)
    for number, row in enumerate(rows):
        settings = PromptSettings(prompt_length=len(row["tokens"]) // 2)
        arrays = {name: one[:, number].numpy() for name, one in reduced.items()} | {"tokens": row["tokens"]}
        found, expected = counted_step(arrays, settings, THRESHOLDS), whole_step(row, settings, without)
        assert len(expected.sinks.key) > 10 and len(expected.records) == 4
        assert_same(by_kind(found), by_kind(expected), terms=LAYERS * HEADS * len(row["tokens"]))


def test_a_canvas_without_an_answer_keeps_no_sinks_of_its_queries():
    row = prompt_arrays(30, 1)
    step, masked, lengths = stacked([row])
    reduced = reduce_statistics(step, masked & False, lengths, lengths, THRESHOLDS)
    arrays = {name: one[:, 0].numpy() for name, one in reduced.items()} | {"tokens": row["tokens"]}
    settings = PromptSettings(prompt_length=30)
    expected = whole_step(row | {"masked": np.zeros(30, np.uint8)}, settings)
    assert_same(by_kind(counted_step(arrays, settings, THRESHOLDS)), by_kind(expected), terms=360)
    assert len(expected.records) == 3


@pytest.mark.parametrize("keys", [7, 50, 99, 100, 101, 102, 150, 301])
@pytest.mark.parametrize("filled", [1.0, 0.6, 0.1])
def test_there_is_room_for_as_many_candidates_as_there_can_be(keys, filled):
    """The same column for as many keys as still are candidates."""
    row, most = prompt_arrays(keys, 0), 0
    for many in range(keys, 0, -1):
        row["column_sums"] = np.zeros((LAYERS, HEADS, keys), np.float32)
        row["column_sums"][..., :many] = filled * keys / many
        column, others = filled * keys / many, filled * keys * (many - 1) / many / (keys - 1)
        if column - others > 1 or (column - others) / (filled * keys) * 100 > 1:
            most = many
            break
    row["column_sums_prompt"] = 0 * row["column_sums"]
    step, masked, lengths = stacked([row])
    reduced = reduce_statistics(step, masked, lengths, lengths // 2, THRESHOLDS)
    arrays = {name: one[:, 0].numpy() for name, one in reduced.items()} | {"tokens": row["tokens"]}
    found = counted_step(arrays, PromptSettings(prompt_length=keys // 2), THRESHOLDS)
    assert len(found.sinks.key) == LAYERS * HEADS * most > 0
    assert (found.sinks.column == row["column_sums"][0, 0, 0]).all()


def test_few_of_the_bytes_leave_the_device():
    step, masked, lengths = stacked([prompt_arrays(512, 0, HEADS), prompt_arrays(400, 1, HEADS)])
    reduced = reduce_statistics(step, masked, lengths, lengths // 2, THRESHOLDS)
    sent, held = (sum(one.nbytes for one in tensors.values()) for tensors in (reduced, step))
    assert sent < 0.3 * held  # a sixth of many heads: a layer's histograms are as large with few


def test_numbers_that_are_none_are_found():
    row = prompt_arrays(20, 1)
    row["value_norms"][1, 0, 3] = np.inf
    step, masked, lengths = stacked([row])
    reduced = reduce_statistics(step, masked, lengths, lengths // 2, THRESHOLDS)
    arrays = {name: one[:, 0].numpy() for name, one in reduced.items()}
    with pytest.raises(AttentionError, match="infinite value norms"):
        check_numbers(reduced["total"][:, 0], arrays, ["a", "b", "c"], 0)
    step["column_sums"][1, 0, 2, 5] = torch.nan
    reduced = reduce_statistics(step, masked, lengths, lengths // 2, THRESHOLDS)
    with pytest.raises(AttentionError, match="first in layer b, head 2"):
        check_numbers(reduced["total"][:, 0], arrays, ["a", "b", "c"], 0)


@pytest.fixture
def gpu(monkeypatch):
    simulated = SimulatedGpu()
    simulated.patch(monkeypatch)
    attention, norms = kernels_in_place(simulated)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    monkeypatch.setattr(dispatch, "compute_by_kernels", attention)
    monkeypatch.setattr(projections, "norms_by_kernel", norms)
    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device=None: generator())  # nothing is drawn
    return simulated


def recorded(gpu, model, out, monkeypatch, **settings):
    """The shapes of what was sent, by name, and the statistics of a recording."""
    shapes, send = [], AsyncWriter.send

    def spied(writer, tensors, landed):
        shapes.append({name: tuple(one.shape) for (number, name), one in tensors.items() if number >= 0})
        send(writer, tensors, landed)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncWriter, "send", spied)
        with gpu, sinkscope.recording(model, out=out, keep="statistics"):
            sinkscope.generate(model, [list(one) for one in PROMPTS], **settings)
    return shapes, read_statistics(out)


@pytest.mark.parametrize("block", [3, 9])
def test_statistics_of_a_gpu_are_those_of_whole_columns(block, gpu, diffusion_folder, tmp_path, monkeypatch):
    model = sinkscope.load(str(diffusion_folder))
    SimulatedGpu().move(model.network)
    settings = {"length": 9, "steps": 9, "block": block}
    shapes, (about, found, texts) = recorded(gpu, model, tmp_path / "reduced", monkeypatch, **settings)
    assert len(shapes) == 9 and not any({"column_sums", "value_norms", "self_attention"} & one.keys() for one in shapes)
    monkeypatch.setattr("sinkscope.recorder.destinations.can_be_reduced", lambda: False)
    shapes, (same_about, expected, same_texts) = recorded(gpu, model, tmp_path / "whole", monkeypatch, **settings)
    assert len(shapes) == 9 and all({"column_sums", "value_norms", "self_attention"} <= one.keys() for one in shapes)
    assert (about["prompts"], texts) == (same_about["prompts"], same_texts) and found.keys() == expected.keys()
    for name, one in expected.items():
        if name == "rows.values":
            keys = [key for key, _ in json.loads(zlib.decompress(expected["rows.keys"].tobytes()))]
            slopes = np.array(["absorbed" in key for key in keys])  # against shares that hardly differ
            np.testing.assert_allclose(found[name][:, slopes], one[:, slopes], rtol=1e-2)
            np.testing.assert_allclose(found[name][:, ~slopes], one[:, ~slopes], rtol=2e-5, atol=2e-6)
        elif one.dtype.kind == "f":
            np.testing.assert_allclose(found[name], one, rtol=2e-5, atol=2e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], one, err_msg=name)


def test_a_statistic_of_another_package_gets_whole_columns(monkeypatch):
    class Keeps(type(all_statistics()[0])):
        def keep(self, step):
            return step.columns.sums

    assert can_be_reduced()
    monkeypatch.setattr("sinkscope.statistics.reduced_step.all_statistics", lambda: (*all_statistics(), Keeps()))
    assert not can_be_reduced()


@pytest.mark.parametrize("kind", ["causal", "blocks behind a cache"])
def test_columns_that_run_over_the_steps_arrive_whole(kind, gpu, autoregressive_folder, tmp_path, monkeypatch):
    model = sinkscope.load(str(autoregressive_folder)) if kind == "causal" else copy.deepcopy(seeded_model("sdar", 2))
    SimulatedGpu().move(model.network)
    settings = {"length": 4} if kind == "causal" else {"length": 6, "block": 3, "block_steps": 2}
    shapes, (about, _, _) = recorded(gpu, model, tmp_path / "whole", monkeypatch, **settings)
    assert about["prompts"] == len(PROMPTS) and all("column_sums" in one for one in shapes)
