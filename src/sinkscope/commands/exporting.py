"""`export`: a trace for other tools."""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from sinkscope.commands.shown import Json, opened, print_json


def export(trace: Positional[Path], to: Literal["xarray", "zarr", "parquet", "numpy"], out: Path, as_json: Json = False) -> None:
    """Writes a trace for other tools, with named axes and units.

    Args:
        trace: folder of a trace, or of numbered traces.
        to: xarray (one NetCDF file), zarr (a folder, which xarray reads too), parquet (one long table), numpy (.npz).
        out: the file, or for zarr the folder; for numbered traces a folder that gets one of each.
    """
    from sinkscope.traces import export_trace
    from sinkscope.traces.exporting import SUFFIXES

    traces = opened(trace)
    single = len(traces) == 1
    paths = [export_trace(one, to, out if single else out / f"{one.folder.name}{SUFFIXES[to]}") for one in traces]
    if as_json:
        print_json({"exports": [{"trace": str(one.folder), "to": to, "out": str(path)} for one, path in zip(traces, paths, strict=True)]})
    else:
        for path in paths:
            print(path)
