"""Traces of random numbers whose canvas grows by one position a step."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope.axes import TRACE_AXES
from sinkscope.traces import TraceWriter, writing
from sinkscope.traces.format import type_of

LAYERS, HEADS, KV_HEADS, SINKS, FIRST_LENGTH, STEPS = 2, 6, 3, 2, 4, 37
SIZES = {"layer": LAYERS, "head": HEADS, "kv_head": KV_HEADS, "sink": SINKS}
WIDER = ("written", "predicted", "confidence")  # as in autoregressive traces: one position beyond what was read
PATHS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
VOCABULARY = {str(token): f" word{token}" for token in range(60)} | {"7": "Ċ漢"}
MANIFEST = {"layers": PATHS, "heads": HEADS, "kv_heads": KV_HEADS, "causal": True, "vocabulary": VOCABULARY}
NOTHING = {"F32": np.nan, "I32": -1, "U8": 0}


def make_step(rng, length, names=tuple(TRACE_AXES)):
    step = {}
    for name in names:
        shape = [SIZES.get(axis, length + (name in WIDER)) for axis in TRACE_AXES[name][1:]]
        most = 2 if name == "masked" else length if name.endswith("_key") else 99
        kind = {"I32": np.int32, "U8": np.uint8, "F32": np.float32}[type_of(name)]
        step[name] = rng.random(shape, np.float32) if kind == np.float32 else rng.integers(0, most, shape).astype(kind)
    return step | {"lengths": np.asarray(length, np.int32)}


def make_steps(count=STEPS, grow=1, names=tuple(TRACE_AXES)):
    rng = np.random.default_rng(0)
    return [make_step(rng, FIRST_LENGTH + grow * number, names) for number in range(count)]


def write_trace(folder, steps, manifest=MANIFEST, complete=True):
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:  # parts are closed by their number of steps, however slow the machine
        patch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: 0.0))
        writer = TraceWriter(folder, manifest)
        for step in steps:
            writer.add(step)
        writer.close(complete)
    return folder


def dense(steps, name, width=None):
    """Every step side by side, the places that a step does not have filled."""
    shapes = [step[name].shape for step in steps]
    shape = [len(steps), *map(max, zip(*shapes, strict=True))]
    shape = shape if width is None or len(shape) == 1 else [*shape[:-1], width]
    whole = np.full(shape, NOTHING[type_of(name)] if name != "lengths" else 0, steps[0][name].dtype)
    for number, step in enumerate(steps):
        whole[(number, *map(slice, step[name].shape))] = step[name]
    return whole


def edit_manifest(folder, **changes):
    """Change keys of a manifest, whose checksum goes; None removes one."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) | {"checksum": None} | changes
    path.write_text(json.dumps({key: value for key, value in manifest.items() if value is not None}), encoding="utf-8")
