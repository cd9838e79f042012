"""Single attention maps beside a trace: ``map-STEP-LAYER-HEAD.safetensors``, each with one tensor [query, key]."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sinkscope.argument_types import in_words
from sinkscope.checksums import compare_sealed, sealed
from sinkscope.documents import check_regular, exists
from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import write_manifest, write_whole
from sinkscope.traces.part_checks import ROUNDING
from sinkscope.traces.reading import Trace, expect_steps
from sinkscope.traces.top_columns import kept_columns

MAP = "map-{:06d}-{:03d}-{:03d}.safetensors"
TENSOR = "attention"
DAMAGED = "the file is damaged"
TOLERANCE = {"float32": 0.02, "bfloat16": 0.25, "float16": 0.1}
"""Largest difference between a column of the map and the recorded one, per unit of 1 + the column, by the model's dtype."""
MORE_THAN_ALL = 1.01
"""Attention that no query can have, whatever it was computed in."""


def check_place(trace: Trace, step: int, layer: int, head: int) -> tuple[int, int, int]:
    """Return a step, layer and head of a trace, counted from the start.

    Raises:
        CallError: out of range.
        TraceError: the trace holds no whole step.
    """
    expect_steps(trace, "make a map of")
    place = []
    for name, value, size in (
        ("step", step, trace.steps),
        ("layer", layer, len(trace.layers)),
        ("head", head, trace.heads),
    ):
        if not -size <= value < size:
            ends = "and −1 is the last" if size == 1 else f"and −{size} to −1 count from the end"
            raise CallError(f"{name}: expected 0 to {size - 1}, found {value}; {trace.folder} has {size}, {ends}")
        place.append(value % size)
    return place[0], place[1], place[2]


def store_map(trace: Trace, step: int, layer: int, head: int, attention: np.ndarray) -> Path:
    """Store one map with a trace, and list it in the manifest.

    Args:
        attention: float32 [query, key].

    Raises:
        TraceError: it cannot be written.
    """
    path = trace.place / MAP.format(step, layer, head)
    metadata = {
        "step": str(step),
        "layer": str(layer),
        "head": str(head),
        "axes": "query key",
        "units": "share of a query's attention",
    }
    write_whole(path, sealed(save({TENSOR: np.ascontiguousarray(attention, np.float32)}, metadata)))
    listed = {tuple(one) for one in trace.manifest.get("maps", [])} | {(step, layer, head)}
    trace.manifest["maps"] = [list(one) for one in sorted(listed)]
    write_manifest(trace.place, trace.manifest)
    return path


def stored_map(trace: Trace, step: int, layer: int, head: int) -> np.ndarray | None:
    """Return a map that was stored with the trace, float32 [query, key]; None where there is none.

    Raises:
        TraceError: a damaged file, or the map of another step, layer, head or trace.
    """
    path = trace.place / MAP.format(step, layer, head)
    if not exists(path):
        return None
    check_regular(path, TraceError, DAMAGED)
    if trace.verifies:
        compare_sealed(path, TraceError)
    try:
        with safe_open(path, framework="np") as file:
            stored = file.get_slice(TENSOR)
            if stored.get_dtype() != "F32" or len(stored.get_shape()) != 2:
                found = f"{' × '.join(map(str, stored.get_shape()))} of {stored.get_dtype()}"
                raise TraceError(f"{path}: {TENSOR}: expected query × key of F32, found {found}; {DAMAGED}")
            attention, metadata = file.get_tensor(TENSOR), file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise TraceError(
            f"{path}: expected a safetensors file with {TENSOR}, found none that can be read; {DAMAGED}"
        ) from error
    for name, value in (("step", step), ("layer", layer), ("head", head)):
        if metadata.get(name) != str(value):
            raise TraceError(
                f"{path}: expected the map of {name} {value}, found that of {name} {metadata.get(name)}; delete the file"
            )
    length = int(trace.lengths[step])
    if attention.shape != (length, length):
        raise TraceError(f"{path}: expected {length} queries and {length} keys, found {attention.shape}; {DAMAGED}")
    if wrong := attention[~((attention >= -ROUNDING) & (attention <= 1 + ROUNDING))].tolist():
        raise TraceError(f"{path}: {TENSOR}: expected shares of attention from 0 to 1, found {wrong[0]:g}; {DAMAGED}")
    if contradiction := _contradiction(attention, trace, (step, layer, head)):
        raise TraceError(f"{path}: {contradiction}: the map of another trace; delete the file")
    return attention


def check_map(name: str, attention: Any, trace: Trace, step: int, layer: int, head: int) -> None:
    """Raise an error for something that is not the map of this step, layer and head, as far as the recorded columns tell.

    A query's shares may add up to less than 1, where a sink takes part.

    Raises:
        CallError: so it is.
    """
    length = int(trace.lengths[step])
    expected = f"{name}: expected a map of floats, {length} queries × {length} keys as in step {step}"
    if not isinstance(attention, np.ndarray) or attention.dtype.kind != "f" or attention.shape != (length, length):
        found = f"{attention.dtype} {attention.shape}" if isinstance(attention, np.ndarray) else in_words(attention)
        raise CallError(f"{expected}, found {found}")
    if wrong := attention[~((attention >= -ROUNDING) & (attention <= 1 + ROUNDING))].tolist():
        raise CallError(f"{expected}, with shares of attention from 0 to 1, found {wrong[0]:g}")
    if (most := float(attention.sum(axis=1, dtype=np.float64).max(initial=0))) > MORE_THAN_ALL:
        raise CallError(f"{expected}, whose shares add up to 1 for each query, found a query with {most:.4g}")
    if contradiction := _contradiction(attention, trace, (step, layer, head)):
        raise CallError(f"{name}: {contradiction}: not the map of step {step}, layer {layer}, head {head}")


def _contradiction(attention: np.ndarray, trace: Trace, place: tuple[int, int, int]) -> str | None:
    """Return what was expected and found where a map's columns are not those that were recorded."""
    recorded = kept_columns(trace)[(*place, slice(len(attention)))]
    tolerance = TOLERANCE.get(str(trace.manifest.get("dtype")), max(TOLERANCE.values()))
    key = column_difference(attention, recorded, tolerance)[1]
    if key is None:
        return None
    return f"expected the map's columns to be those of the trace, {recorded[key]:.3f} at key {key}, found {attention[:, key].sum():.3f}"


def column_difference(attention: np.ndarray, recorded: np.ndarray, tolerance: float) -> tuple[float, int | None]:
    """Return the largest difference between a map's columns and those recorded, and its key if it is beyond the tolerance.

    Args:
        attention: [query, key].
        recorded: [key]; NaN at columns that were not kept, which cannot be compared.
        tolerance: per unit of 1 + the column.
    """
    difference = np.nan_to_num(np.abs(attention.sum(axis=0) - recorded))
    beyond = (difference > tolerance * (1 + np.nan_to_num(recorded))).any()
    return float(difference.max(initial=0.0)), int(difference.argmax()) if beyond else None
