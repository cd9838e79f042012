"""Single attention maps beside a trace: ``map-STEP-LAYER-HEAD.safetensors``, each with one tensor [query, key]."""

from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import compare_sealed, sealed
from sinkscope.traces.format import ROUNDING, write_manifest, write_whole
from sinkscope.traces.reading import Trace, expect_steps
from sinkscope.traces.trace_array import kept_columns

MAP = "map-{:06d}-{:03d}-{:03d}.safetensors"
TENSOR = "attention"
TOLERANCE = {"float32": 0.02, "bfloat16": 0.25, "float16": 0.1}
"""Largest difference between a column of the map and the recorded one, per 1 + the column, by the model's dtype."""


def check_place(trace: Trace, step: int, layer: int, head: int) -> tuple[int, int, int]:
    """Return a step, layer and head of a trace, counted from the start; raise CallError out of range."""
    expect_steps(trace, "make a map of")
    sizes = {"step": (step, trace.steps), "layer": (layer, len(trace.layers)), "head": (head, trace.heads)}
    for name, (value, size) in sizes.items():
        if not -size <= value < size:
            raise CallError(f"{name}: expected 0 to {size - 1}, found {value}; {trace.folder} has {size}")
    return step % trace.steps, layer % len(trace.layers), head % trace.heads


def _place(step: int, layer: int, head: int) -> dict[str, str]:
    return {"step": str(step), "layer": str(layer), "head": str(head)}


def store_map(trace: Trace, step: int, layer: int, head: int, attention: np.ndarray) -> Path:
    """Store one map with a trace, float32 [query, key], and list it in the manifest."""
    path = trace.place / MAP.format(step, layer, head)
    metadata = {**_place(step, layer, head), "axes": "query key", "units": "share of a query's attention"}
    write_whole(path, sealed(save({TENSOR: np.ascontiguousarray(attention, np.float32)}, metadata)))
    listed = {tuple(one) for one in trace.manifest.get("maps", [])} | {(step, layer, head)}
    trace.manifest["maps"] = [list(one) for one in sorted(listed)]
    write_manifest(trace.place, trace.manifest)
    return path


def stored_map(trace: Trace, step: int, layer: int, head: int) -> np.ndarray | None:
    """Return a stored map, float32 [query, key], or None; raise TraceError for one of another trace or place."""
    path = trace.place / MAP.format(step, layer, head)
    if not path.exists():
        return None
    if trace.verifies:
        compare_sealed(path, TraceError)
    with safe_open(path, framework="np") as file:
        attention, metadata = file.get_tensor(TENSOR), file.metadata() or {}
    other = not _place(step, layer, head).items() <= metadata.items()
    contradiction = f"it is that of {metadata}" if other else _contradiction(attention, trace, step, layer, head)
    if contradiction:
        raise TraceError(f"{path}: {contradiction}: the map of another trace; delete the file")
    return attention


def _contradiction(attention: np.ndarray, trace: Trace, step: int, layer: int, head: int) -> str | None:
    length = int(trace.lengths[step])  # a query's shares may add up to less than 1, where a sink takes part
    if attention.shape != (length, length):
        return f"expected {length} queries × {length} keys, found {list(attention.shape)}"
    if not ((attention >= -ROUNDING) & (attention <= 1 + ROUNDING)).all():
        return "expected shares of attention from 0 to 1, found others"
    recorded = kept_columns(trace)[step, layer, head, :length]
    tolerance = TOLERANCE.get(str(trace.manifest.get("dtype")), max(TOLERANCE.values()))
    if (key := column_difference(attention, recorded, tolerance)[1]) is not None:
        return f"expected the recorded column {recorded[key]:.3f} at key {key}, found {attention[:, key].sum():.3f}"
    return None


def column_difference(attention: np.ndarray, recorded: np.ndarray, tolerance: float) -> tuple[float, int | None]:
    """Return the largest difference between a map's columns [query, key] and those recorded [key] (NaN where none was
    kept), and its key where it exceeds ``tolerance`` per unit of 1 + the column.
    """
    difference = np.nan_to_num(np.abs(attention.sum(axis=0) - recorded))
    beyond = (difference > tolerance * (1 + np.nan_to_num(recorded))).any()
    return float(difference.max(initial=0.0)), int(difference.argmax()) if beyond else None
