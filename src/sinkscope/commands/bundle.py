"""`bundle`: what a colleague needs to open a trace anywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

import sinkscope
from sinkscope.commands.command import Command, Switch, default_is
from sinkscope.commands.output import note
from sinkscope.counts import counted
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Bundle(Command):
    """A folder to share: the trace, a model card, the explorer page, and a checksum of each file.

    Attributes:
        trace: folder of one trace; with --check of a bundle.
        out: a new folder.
        precision: of the values; float16 halves the size and rounds by at most 0.05 %, or 3e-8 where that is more.
        page: leaves the explorer page out.
        check: compares every file of a bundle with its checksum, and writes nothing.
    """

    trace: Positional[Path]
    out: Annotated[Path | None, default_is("none; needed without --check")] = None
    precision: Literal["float32", "float16"] = "float32"
    page: Switch = True
    check: Switch = False

    def run(self) -> None:
        from sinkscope.recorder.step_recorder import command_line
        from sinkscope.traces.bundles import open_bundle, unlisted_files, write_bundle

        if self.check == (self.out is not None):
            raise CallError("expected --out FOLDER to write a bundle, or --check to compare one")
        if self.out is None:
            trace = open_bundle(self.trace)
            print(f"{self.trace}: {counted(trace.steps, 'step')}, every file is as it was written")
            if more := unlisted_files(trace):
                note(f"{self.trace}: not part of the bundle and not compared: {', '.join(more)}")
            return
        trace, page = sinkscope.open_trace(self.trace), None
        if self.page:
            explorer = sinkscope.explore([trace])
            for text in explorer.document["notes"]:
                note(text)
            page = explorer.page()
        print(write_bundle(trace, self.out, self.precision, page, command_line()))
