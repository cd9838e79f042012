"""`ExplorerServer`: shows an explorer on this machine only, and computes single attention maps with the model."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from threading import Lock
from typing import Any, cast
from urllib.parse import parse_qs

import numpy as np

from sinkscope.errors import CallError, SinkscopeError, first_line
from sinkscope.figures.explorer.explorer_page import Explorer, tile_path
from sinkscope.figures.subject import Maps
from sinkscope.traces import Trace
from sinkscope.traces.stored_maps import check_place

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PLACE = ("trace", "step", "layer", "head")


@dataclass
class ExplorerServer:
    """A web server for one explorer. It reads no files: it answers with the page, its tiles and attention maps only.
    ``traces`` are in the order of the explorer; port 0 takes a free one.
    """

    explorer: Explorer = field(repr=False)
    traces: Sequence[Trace]
    maps: Maps
    port: int = 0
    _one_at_a_time: Any = field(default_factory=Lock, init=False)

    @cached_property
    def http(self) -> ThreadingHTTPServer:
        """The listening server; raises CallError where the port is taken."""
        page = self.explorer.folder_page(served=True).encode()
        tiles = {f"/{tile_path(name)}": name for name in self.explorer.tiles.content}

        class Handler(_Handler):
            server_of, index, tile_names = self, page, tiles

        try:
            return _Server((ADDRESS, self.port), Handler)
        except OSError as error:
            raise CallError(f"port {self.port}: expected a free one ({error}); leave --port out to take any") from error

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.http.server_address[1]}/"

    def attention_map(self, query: str) -> np.ndarray:
        """Return the map that a query string asks for, float32 [query, key]."""
        asked = parse_qs(query)
        try:
            trace, step, layer, head = (int(asked[name][0]) for name in PLACE)
            one = self.traces[trace]
        except (KeyError, ValueError, IndexError) as error:
            raise CallError(f"expected numbers for {', '.join(PLACE)}, found {query[:60]!r}") from error
        step, layer, head = check_place(one, step, layer, head)
        with self._one_at_a_time:
            return np.ascontiguousarray(self.maps(one, step, layer, head), "<f4")

    def serve(self) -> None:
        with self.http as server:
            server.serve_forever()

    def begin_no_map(self) -> bool:
        """From now on compute no other map; return whether none is being computed either."""
        return self._one_at_a_time.acquire(blocking=False)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # of a tab that was closed
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server_of: ExplorerServer
    index: bytes
    tile_names: dict[str, str]
    server_version = "sinkscope"
    sys_version = ""
    timeout = 60  # seconds that a connection may say nothing

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._asked_from_here():
            self._answer(403, "text/plain", b"expected a request from this machine's own page\n")
        elif path == "/map":
            try:
                found = self.server_of.attention_map(query)
                shape = {"X-Queries": str(found.shape[0])}
                self._answer(200, "application/octet-stream", found.tobytes(), shape)
            except (SinkscopeError, RuntimeError, MemoryError) as error:  # torch's, such as too little memory
                self._answer(422, "application/json", json.dumps({"error": first_line(error)}).encode())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", self.index)
        elif path in self.tile_names:
            self._answer(200, "application/octet-stream", self.server_of.explorer.tiles.content[self.tile_names[path]])
        else:
            self._answer(404, "text/plain", b"no such page\n")

    def _asked_from_here(self) -> bool:
        """Return whether the request names this page, so that no other site can read it through a name that it owns."""
        port = cast(HTTPServer, self.server).server_port
        hosts = {f"{name}:{port}" for name in NAMES} | ({*NAMES} if port == HTTP_PORT else set())  # browsers omit it
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in hosts and (origin is None or origin in {f"http://{host}" for host in hosts})

    def _answer(self, status: int, kind: str, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""
