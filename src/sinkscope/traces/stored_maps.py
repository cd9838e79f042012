"""Single attention maps beside a trace: ``map-STEP-LAYER-HEAD.safetensors``, each with one tensor [query, key]."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sinkscope.checksums import compare_sealed, sealed
from sinkscope.documents import check_regular, exists
from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import write_manifest, write_whole
from sinkscope.traces.part_checks import ROUNDING
from sinkscope.traces.reading import Trace

MAP = "map-{:06d}-{:03d}-{:03d}.safetensors"
TENSOR = "attention"
DAMAGED = "the file is damaged"


def check_place(trace: Trace, step: int, layer: int, head: int) -> tuple[int, int, int]:
    """Return a step, layer and head of a trace, counted from the start.

    Raises:
        CallError: out of range.
    """
    place = []
    for name, value, size in (("step", step, trace.steps), ("layer", layer, len(trace.layers)), ("head", head, trace.heads)):
        if not -size <= value < size:
            raise CallError(f"{name}: expected 0 to {size - 1}, found {value}; {trace.folder} has {size}")
        place.append(value % size)
    return place[0], place[1], place[2]


def store_map(trace: Trace, step: int, layer: int, head: int, attention: np.ndarray) -> Path:
    """Store one map with a trace, and list it in the manifest.

    Args:
        attention: float32 [query, key].

    Raises:
        TraceError: it cannot be written.
    """
    path = trace.folder / MAP.format(step, layer, head)
    metadata = {"step": str(step), "layer": str(layer), "head": str(head), "axes": "query key", "units": "share of a query's attention"}
    write_whole(path, sealed(save({TENSOR: np.ascontiguousarray(attention, np.float32)}, metadata)))
    listed = {tuple(one) for one in trace.manifest.get("maps", [])} | {(step, layer, head)}
    trace.manifest["maps"] = [list(one) for one in sorted(listed)]
    write_manifest(trace.folder, trace.manifest)
    return path


def stored_map(trace: Trace, step: int, layer: int, head: int) -> np.ndarray | None:
    """Return a map that was stored with the trace, float32 [query, key]; None where there is none.

    Raises:
        TraceError: a damaged file.
    """
    path = trace.folder / MAP.format(step, layer, head)
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
            attention = file.get_tensor(TENSOR)
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path}: expected a safetensors file with {TENSOR}, found none that can be read; {DAMAGED}") from error
    length = int(trace.lengths[step])
    if attention.shape[1] != length or attention.shape[0] > length:
        raise TraceError(f"{path}: expected at most {length} queries and {length} keys, found {attention.shape}; {DAMAGED}")
    if wrong := attention[~((attention >= -ROUNDING) & (attention <= 1 + ROUNDING))].tolist():
        raise TraceError(f"{path}: {TENSOR}: expected shares of attention from 0 to 1, found {wrong[0]:g}; {DAMAGED}")
    return attention
