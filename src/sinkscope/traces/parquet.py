"""A trace as one long Parquet table: a row for each step × layer × head × position, written a step at a time.

Values of the canvas are repeated for every layer and head, values of a kv head for every query head that shares it, the
attention of sink tokens (a column for each) for every position. Units are in the metadata of the columns, the manifest
in that of the file. Positions beyond ``lengths`` have no row, but those that a step writes behind its canvas
(autoregressive models): they have no token and no columns yet.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.axes import HEAD, KV_HEAD, LAYER, POSITION, STEP, TRACE_AXES, TRACE_UNITS, by_query_head
from sinkscope.traces.part_files import widen
from sinkscope.traces.reading import Trace
from sinkscope.traces.trace_array import kept_columns

ROWS_AT_ONCE = 1 << 19
COLUMNS = {
    "tokens": "token",
    "masked": "masked",
    "written": "written",
    "predicted": "predicted",
    "confidence": "confidence",
    "column_sums": "column_sum",
    "column_sums_masked": "column_sum_masked",
    "column_sums_prompt": "column_sum_prompt",
    "self_attention": "self_attention",
    "last_query": "last_query",
    "newest_columns": "newest_column",
    "value_norms": "value_norm",
    "key_norms": "key_norm",
    "hidden_norms": "hidden_norm",
    "output_norms": "output_norm",
}
"""Column of the table by tensor. Tensors of other axes (``lengths``, the largest columns) have none."""
SINK_TOKENS = "sink_token_columns"
TEXT_UNIT = "the token as text, null where the trace does not say"


def write_parquet(trace: Trace, path: Path) -> None:
    """Write the table, with pyarrow."""
    import pyarrow
    import pyarrow.parquet
    from pyarrow.fs import LocalFileSystem

    names = [name for name in COLUMNS if name in trace.tensors or f"top_{name}" in trace.tensors]
    schema = _schema(trace, names)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd", filesystem=LocalFileSystem()) as writer:
        for first, stop in trace.step_parts():
            lengths = trace.lengths[first:stop]
            held = {name: kept_columns(trace, name)[first:stop] for name in names}
            sinks = trace.sink_token_columns[first:stop] if SINK_TOKENS in trace.tensors else None
            for step in range(first, stop):
                place, length = step - first, int(lengths[step - first])
                if trace.causal:  # also the positions behind the canvas for which the step predicts a token
                    behind = (
                        np.flatnonzero(held[name][place] >= 0) for name in ("written", "predicted") if name in held
                    )
                    length = max([length, *(int(places[-1]) + 1 for places in behind if places.size)])
                arrays = {name: widen(name, block[place], length)[..., :length] for name, block in held.items()}
                at_once = max(1, ROWS_AT_ONCE // max(1, trace.heads * length))
                for start in range(0, len(trace.layers), at_once):
                    layers = range(start, min(start + at_once, len(trace.layers)))
                    rows = _rows(trace, step, layers, arrays, length)
                    if sinks is not None:
                        each = np.repeat(sinks[place, layers.start : layers.stop], length, axis=1)
                        rows |= dict(zip(_sink_names(trace), each.reshape(-1, sinks.shape[-1]).T, strict=True))
                    writer.write_table(pyarrow.table(rows, schema=schema))


def _sink_names(trace: Trace) -> list[str]:
    """Return the columns of the table for a network's own sink tokens."""
    count = trace.sink_token_columns.shape[-1] if SINK_TOKENS in trace.tensors else 0
    return ["sink_token_column"] if count == 1 else [f"sink_token_column_{number}" for number in range(count)]


def _rows(trace: Trace, step: int, layers: range, arrays: dict[str, np.ndarray], length: int) -> dict[str, Any]:
    import pyarrow

    shape, texts = (len(layers), trace.heads, length), trace.manifest.get("vocabulary", {})
    places = np.ogrid[layers.start : layers.stop, : trace.heads, :length]
    table: dict[str, Any] = {"step": np.full(shape, step, np.int32).ravel()}
    for name, place in zip((LAYER, HEAD, POSITION), places, strict=True):
        table[name] = np.broadcast_to(place, shape).ravel().astype(np.int32)
    for name, array in arrays.items():
        axes = TRACE_AXES[name][1:]
        if LAYER in axes:
            array = array[layers.start : layers.stop]
        if KV_HEAD in axes:
            array = np.stack([by_query_head(one, trace.heads) for one in array])
        elif LAYER in axes and HEAD not in axes:
            array = array[:, None]
        flat = np.broadcast_to(array, shape).ravel()
        table[COLUMNS[name]] = flat.astype(bool) if name == "masked" else flat
        if name == "tokens":
            words = pyarrow.array([texts.get(str(token)) for token in array.tolist()], pyarrow.string())
            indices = np.broadcast_to(np.arange(length, dtype=np.int32), shape).ravel()
            table["text"] = pyarrow.DictionaryArray.from_arrays(indices, words).cast(pyarrow.string())
    return table


def _schema(trace: Trace, names: list[str]) -> Any:
    import pyarrow

    units = {
        STEP: "forward call, from 0",
        LAYER: "from 0, next to the embedding",
        HEAD: "query head, from 0",
        POSITION: "tokens, from 0",
    }
    fields = [pyarrow.field(name, pyarrow.int32(), False, {"units": unit}) for name, unit in units.items()]
    for name in names:
        kind = pyarrow.bool_() if name == "masked" else pyarrow.from_numpy_dtype(getattr(trace, name).dtype)
        fields.append(pyarrow.field(COLUMNS[name], kind, metadata={"units": TRACE_UNITS[name]}))
        if name == "tokens":
            fields.append(pyarrow.field("text", pyarrow.string(), metadata={"units": TEXT_UNIT}))
    sinks = {"units": TRACE_UNITS[SINK_TOKENS]}
    fields += [pyarrow.field(name, pyarrow.float32(), metadata=sinks) for name in _sink_names(trace)]
    about = {"manifest": json.dumps(trace.manifest, ensure_ascii=False), "layers": json.dumps(list(trace.layers))}
    return pyarrow.schema(fields, about)
