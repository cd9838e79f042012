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
        from sinkscope.errors import TraceError
        from sinkscope.runs.folder import new_folder
        from sinkscope.traces import export_trace
        from sinkscope.traces.exporting import SUFFIXES

        traces = open_and_check(self.trace)
        if traces[0].folder == self.trace:
            written = {self.trace: export_trace(traces[0], self.to, self.out)}
        else:
            names = {trace.folder: f"{trace.folder.name}{SUFFIXES[self.to]}" for trace in traces}
            with new_folder(self.out, TraceError, "the exports", among=list(names.values())) as place:
                for trace in traces:
                    export_trace(trace, self.to, place / names[trace.folder])
            written = {folder: self.out / name for folder, name in names.items()}
        exports = [{"trace": str(folder), "to": self.to, "out": str(path)} for folder, path in written.items()]
        print_json({"exports": exports}) if self.json else print(*written.values(), sep="\n")
