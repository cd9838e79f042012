"""Exports of a trace, with named axes and units: NumPy, Parquet, zarr and xarray.

numpy     one ``.npz`` file: the tensors as they are, and ``manifest.json`` as bytes
zarr      one group with dimension names, a chunk per 16 steps and layer; `xarray.open_zarr` reads it
xarray    one NetCDF file for `xarray.open_dataset`, written from memory
parquet   long form, one row per step × layer × head × position (see `parquet`)

NumPy is written tensor by tensor, zarr and Parquet part by part. A file appears under its name once it is whole.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sinkscope.axes import KEY, POSITION, TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import UNFINISHED
from sinkscope.runs.folder import claimed_file
from sinkscope.traces.format import ROOM
from sinkscope.traces.parquet import write_parquet
from sinkscope.traces.part_files import widen
from sinkscope.traces.reading import Trace, expect_steps
from sinkscope.traces.writing import STEPS_PER_PART

Target = Literal["xarray", "zarr", "parquet", "numpy"]
SUFFIXES: dict[str, str] = {"xarray": ".nc", "zarr": ".zarr", "parquet": ".parquet", "numpy": ".npz"}
NEEDS = {"xarray": "xarray", "zarr": "zarr", "parquet": "pyarrow"}


def export_trace(trace: Trace, target: Target, out: str | Path) -> Path:
    """Write a trace in another format, and return the path of the file, or for zarr the folder.

    Args:
        out: the path, which must not exist; the usual suffix is added where the name does not end in it.

    Raises:
        CallError: something at ``out`` already, or a package that is not installed.
        TraceError: no whole step, or a file that cannot be written.
    """
    check_installed(target)
    expect_steps(trace, "export")
    path = Path(out)
    if path.suffix in {*SUFFIXES.values()} - {SUFFIXES[target]}:
        raise CallError(f"--out {out}: expected a name in {SUFFIXES[target]} for {target}, found one in {path.suffix}")
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
        except OSError as error:
            raise TraceError(f"{path} cannot be written ({error}); {ROOM}") from error
        finally:
            _remove(beside)
    return path


def check_installed(target: str) -> None:
    """Raise CallError if a package that a target needs is missing, with the command that installs it."""
    from importlib.util import find_spec

    if target in NEEDS and find_spec(NEEDS[target]) is None:
        raise CallError(
            f"export to {target} needs {NEEDS[target]}, which is not installed: pip install 'sinkscope[export]'"
        )


def to_xarray(trace: Trace) -> Any:
    """Return an `xarray.Dataset` of a trace that is read when indexed: dimensions as in `axes.TRACE_AXES`, units as
    attributes.

    An axis has one size in a dataset. A tensor that is shorter along it is filled with −1 or NaN, `masked` with 0.
    """
    check_installed("xarray")
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
    import zarr

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


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_WRITERS: dict[str, Callable[[Trace, Path], None]] = {
    "numpy": _write_numpy,
    "zarr": _write_zarr,
    "xarray": _write_netcdf,
    "parquet": write_parquet,
}
