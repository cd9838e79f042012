"""Exports of a trace, with named axes and units.

numpy     one ``.npz`` file: the tensors as they are, and ``manifest.json`` as bytes
zarr      one group with dimension names, a chunk per 16 steps and layer; `xarray.open_zarr` reads it
xarray    one NetCDF file for `xarray.open_dataset`, written from memory
parquet   a row for each step × layer × head × position, and for positions that an autoregressive step writes behind its
          canvas. Values of the canvas are repeated for every layer and head, of a kv head for its query heads, of sink
          tokens (a column for each) for every position
"""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sinkscope.axes import HEAD, KEY, KV_HEAD, LAYER, POSITION, STEP, TRACE_AXES, TRACE_UNITS, by_query_head
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import UNFINISHED
from sinkscope.runs.folder import claimed_file
from sinkscope.traces.format import widen
from sinkscope.traces.reading import Trace, expect_steps
from sinkscope.traces.trace_array import kept_columns
from sinkscope.traces.writing import STEPS_PER_PART

Target = Literal["xarray", "zarr", "parquet", "numpy"]
SUFFIXES: dict[str, str] = {"xarray": ".nc", "zarr": ".zarr", "parquet": ".parquet", "numpy": ".npz"}

ROWS_AT_ONCE = 1 << 19
_NO_COLUMN = ("lengths", "sink_token_columns")
COLUMNS = {
    name: re.sub(r"s(?=_|$)", "", name)
    for name in TRACE_AXES
    if not name.startswith(("top_", "rest_")) and name not in _NO_COLUMN
}
"""Column of the Parquet table by tensor: its name in the singular."""
SINK_TOKENS = "sink_token_columns"
TEXT_UNIT = "the token as text, null where the trace does not say"


def export_trace(trace: Trace, target: Target, out: str | Path) -> Path:
    """Write a trace in another format, and return the path with the usual suffix; raise CallError where it is there
    already, TraceError without a whole step.
    """
    expect_steps(trace, "export")
    path = Path(out)
    path = path if path.suffix == SUFFIXES[target] else path.with_name(path.name + SUFFIXES[target])
    with claimed_file(path, TraceError):
        if os.path.lexists(path):
            raise CallError(f"{path} is there already; choose another name or delete it")
        # Absolute, since libraries may take a relative path for an address, such as `c:x`.
        beside = path.with_name(path.name + UNFINISHED).absolute()
        try:
            _remove(beside)
            _WRITERS[target](trace, beside)
            os.replace(beside, path)
        finally:
            _remove(beside)
    return path


def to_xarray(trace: Trace) -> Any:
    """Return an `xarray.Dataset` of a trace that is read when indexed: dimensions as in `axes.TRACE_AXES`, units as
    attributes. What is shorter along an axis is filled with −1 or NaN, `masked` with 0.
    """
    import xarray
    from xarray.core import indexing

    from sinkscope.traces.lazy_array import LazyTensor

    sizes, variables = axis_sizes(trace), {}
    for name in trace.tensors:
        lazy = indexing.LazilyIndexedArray(LazyTensor(trace, name, sizes))
        variables[name] = xarray.Variable(TRACE_AXES[name], lazy, {"units": TRACE_UNITS[name]})
    return xarray.Dataset(variables, attrs=_attributes(trace))


def axis_sizes(trace: Trace) -> dict[str, int]:
    """Return the size of every axis: the longest among the tensors of a trace."""
    sizes: dict[str, int] = {}
    for name in trace.tensors:
        for axis, size in zip(TRACE_AXES[name], getattr(trace, name).shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 0))
    if KEY in sizes and POSITION in sizes:  # both count tokens of the canvas
        sizes[KEY] = sizes[POSITION] = max(sizes[KEY], sizes[POSITION])
    return sizes


def _attributes(trace: Trace) -> dict[str, Any]:
    """Return the attributes of an exported group or file: text and numbers, as NetCDF has no others."""
    return {
        "layers": list(trace.layers),
        "model": str(trace.manifest["model"]["name"]),
        "complete": int(trace.complete),
        "causal": int(trace.causal),
        "manifest": json.dumps(trace.manifest, ensure_ascii=False),
    }


def _write_numpy(trace: Trace, path: Path) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:  # ZipInfo is without a date
        archive.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(trace.manifest, ensure_ascii=False))
        for name in trace.tensors:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, getattr(trace, name)[:], allow_pickle=False)


def _write_zarr(trace: Trace, path: Path) -> None:
    import zarr.storage

    sizes = axis_sizes(trace)
    group = zarr.open_group(zarr.storage.LocalStore(path), mode="w", attributes=_attributes(trace))
    for name in trace.tensors:
        axes, tensor = TRACE_AXES[name], getattr(trace, name)
        shape = [sizes[axis] for axis in axes]
        chunks = (min(STEPS_PER_PART, shape[0]), *([1, *shape[2:]] if len(shape) > 2 else shape[1:]))
        about = {"dimension_names": axes, "attributes": {"units": TRACE_UNITS[name]}}
        array = group.create_array(name, shape=shape, chunks=chunks, dtype=tensor.dtype, **about)
        for first, stop in trace.step_parts():
            array[first:stop] = widen(name, tensor[first:stop], shape[-1]) if len(shape) > 1 else tensor[first:stop]


def _write_netcdf(trace: Trace, path: Path) -> None:
    dataset = to_xarray(trace)
    if large := [name for name, one in dataset.variables.items() if one.nbytes >= 1 << 31]:
        raise CallError(f"{large[0]} is too large for NetCDF; export to zarr, which xarray reads as well")
    dataset.attrs["layers"] = "\n".join(dataset.attrs["layers"])
    encoding = {name: {"_FillValue": None} for name in dataset.variables}
    dataset.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT", encoding=encoding)


def _write_parquet(trace: Trace, path: Path) -> None:
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
                    behind = [held[name][place] >= 0 for name in ("written", "predicted") if name in held]
                    length = max([length, *(int(np.flatnonzero(one)[-1]) + 1 for one in behind if one.any())])
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

    units = {STEP: "forward call, from 0", LAYER: "from 0, next to the embedding"}
    units |= {HEAD: "query head, from 0", POSITION: "tokens, from 0"}
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


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_WRITERS = {"numpy": _write_numpy, "zarr": _write_zarr, "xarray": _write_netcdf, "parquet": _write_parquet}
