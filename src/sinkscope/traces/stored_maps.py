"""Single attention maps beside a trace: ``map-STEP-LAYER-HEAD.safetensors``, each with one tensor [query, key]."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import write_manifest, write_whole
from sinkscope.traces.reading import Trace

MAP = "map-{:06d}-{:03d}-{:03d}.safetensors"
TENSOR = "attention"


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
    write_whole(path, save({TENSOR: np.ascontiguousarray(attention, np.float32)}, metadata))
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
    if not path.exists():
        return None
    try:
        return load(path.read_bytes())[TENSOR]
    except (SafetensorError, KeyError, OSError) as error:
        raise TraceError(f"{path} cannot be read ({error}); the file is damaged") from error
