"""`export`: writes a trace for other tools."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from sinkscope.commands.command import Command, Json
from sinkscope.commands.output import open_and_check, print_json


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Write a trace for other tools, with named axes and units.

    Attributes:
        trace: folder of a trace, or of numbered traces.
        to: xarray (one NetCDF file), zarr (a folder, which xarray reads too), parquet (one long table), numpy (.npz).
        out: the file, or for zarr the folder; for numbered traces a folder, with one export for each.
    """

    trace: Positional[Path]
    to: Literal["xarray", "zarr", "parquet", "numpy"]
    out: Path
    json: Json = False

    def run(self) -> None:
        from sinkscope.traces import export_trace
        from sinkscope.traces.exporting import SUFFIXES

        traces = open_and_check(self.trace)
        exports = []
        for trace in traces:
            out = self.out if trace.folder == self.trace else self.out / f"{trace.folder.name}{SUFFIXES[self.to]}"
            exports.append({"trace": str(trace.folder), "to": self.to, "out": str(export_trace(trace, self.to, out))})
        if self.json:
            print_json({"exports": exports})
        else:
            for export in exports:
                print(export["out"])
