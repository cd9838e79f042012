"""`explore`: a page to scrub through steps, layers, heads and tokens."""

import contextlib
import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Annotated

from sinkscope.commands.command import Command, RolesFile, Switch, Traces, default_is
from sinkscope.commands.map import map_reader
from sinkscope.commands.output import note, open_and_check, roles_for_traces
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import read_json_object
from sinkscope.runs.folder import claimed_file


@dataclass(frozen=True, kw_only=True)
class Explore(Command):
    """A page to scrub through steps, layers, heads and tokens; the first two traces are shown side by side.

    Attributes:
        traces: folders of traces; several are shown side by side, with their difference.
        out: an .html file, which works without network or server, or a folder for a web server, for traces too large
            for one page.
        lens: a JSON file of `sinkscope lens --json`: what each layer would predict at sinks.
        excess: how far a column must exceed the mean of the others (of a causal model: uniform attention), in queries.
        serve: shows the page to this machine only, and computes attention maps with the model that wrote the trace.
        port: of --serve.
        browser: with --serve: opens no browser.
        model: with --serve: what wrote the traces, where it has moved; computes the maps.
        device: of that model: cpu, cuda …
    """

    traces: Traces
    out: Annotated[Path | None, default_is("explorer.html")] = None
    excess: float = 3.0
    roles: RolesFile = None
    lens: Annotated[Path | None, default_is("none")] = None
    serve: Switch = False
    port: Annotated[int, default_is("a free one")] = 0
    browser: Switch = True
    model: Annotated[str | None, default_is("the name in the trace")] = None
    device: str = "cpu"

    def run(self) -> None:
        from sinkscope.figures.explorer import ExplorerServer, explore

        if self.serve:
            self.refuse("out", "with --serve")
        out = self.out or Path("explorer.html")
        is_page = out.suffix.lower() == ".html"
        traces = open_and_check(*self.traces)
        with claimed_file(out, TraceError) if is_page and not self.serve else contextlib.nullcontext():
            roles = roles_for_traces(self.roles, traces)
            lens = None if self.lens is None else read_json_object(self.lens, CallError, "see `sinkscope lens --json`")
            explorer = explore(traces, excess=self.excess, roles=roles, lens=lens)
            for text in explorer.document["notes"]:
                note(text)
            if not self.serve:
                print(explorer.write_page(out) if is_page else explorer.write_folder(out))
                return
        server = ExplorerServer(explorer, traces, map_reader(self.model, self.device), self.port)
        with contextlib.suppress(KeyboardInterrupt):
            print(server.url, flush=True)
            note("Ctrl+C ends it")
            if self.browser:  # in a thread: Python waits for a browser of the terminal, which waits for the page
                Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            with server:
                server.serve_forever()
        if not server.begin_no_map():  # the end of Python would abort within torch
            sys.stdout.flush()
            os._exit(0)
