"""`Explorer`: the page to scrub through steps, layers, heads and tokens, as one file or as a folder; and
`ExplorerServer`, which shows it on this machine only and computes single attention maps with the model.
"""

import base64
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, cast
from urllib.parse import parse_qs

import numpy as np

from sinkscope.counts import counted
from sinkscope.errors import CallError, SinkscopeError, TraceError, first_line
from sinkscope.figures.explorer.recorded_views import STRONGEST, Tiles, add_trace
from sinkscope.figures.style import model_labels, text_label
from sinkscope.figures.subject import Maps
from sinkscope.roles.head_roles import Roles
from sinkscope.runs.folder import new_folder
from sinkscope.traces import Trace
from sinkscope.traces.format import hidden_rules, write_whole
from sinkscope.traces.reading import as_trace, expect_steps
from sinkscope.traces.stored_maps import check_place

ASSETS = files("sinkscope.figures.explorer") / "assets"
ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PLACE = ("trace", "step", "layer", "head")
SCRIPTS = "data selection drawing heads_view trace_view charts difference attention_map lens_view explorer".split()
LARGEST_PAGE, LARGEST_INLINE = 64_000_000, 16_000_000
"""Bytes of tiles up to which a page holds every head, and a page that travels through the kernel of a notebook."""
MARK = b" \xc2\xb7 sinkscope</title>"
INLINE_HEIGHT = 900
NO_WIDGET = (
    "a notebook shows the explorer by anywidget, which is not installed: pip install 'sinkscope[notebook]' (`sinkscope "
    "explore TRACE` writes the page as a file)"
)
TOO_LARGE = (
    f"This trace is too large for one page: single heads show their {STRONGEST} largest columns of each step only. A "
    "folder shows all: sinkscope explore TRACE --out FOLDER."
)


@dataclass(frozen=True)
class Explorer:
    """A page: its document, which is everything but the arrays, and its tiles, the arrays. Notebooks show it."""

    document: dict[str, Any] = field(repr=False)
    tiles: Tiles = field(repr=False)

    def __repr__(self) -> str:
        return f"Explorer({' and '.join(one['label'] for one in self.document['traces'])})"

    def widget(self, height: int = INLINE_HEIGHT) -> Any:
        """Return the page as an anywidget for notebooks; above `LARGEST_INLINE` without single heads."""
        try:
            import anywidget
            import traitlets
        except ImportError as error:
            raise CallError(NO_WIDGET) from error

        class ExplorerWidget(anywidget.AnyWidget):
            _esm = (ASSETS / "widget.js").read_text(encoding="utf-8")
            page = traitlets.Unicode().tag(sync=True)
            height = traitlets.Int(INLINE_HEIGHT).tag(sync=True)

        return ExplorerWidget(page=self.page(LARGEST_INLINE), height=height)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        try:
            return self.widget()._repr_mimebundle_(**options)
        except CallError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def page(self, largest: int | None = None) -> str:
        """Return the page as one file; above ``largest`` bytes of tiles, `LARGEST_PAGE` when None, no single heads."""
        return "".join(self._page(LARGEST_PAGE if largest is None else largest))

    def _page(self, most: int) -> Iterator[str]:
        """Return the page in pieces; tiles of single heads, which are most of the data, come last or not at all."""
        content, notes, of_heads = self.tiles.content, self.document["notes"], set()
        for number, one in enumerate(self.document["traces"]):
            for quantity in one["quantities"]:
                of_heads |= {f"{number}/{quantity['name']}/{layer}" for layer in range(one["layers"])}
        if sum(map(len, content.values())) > most:
            content, notes = {name: tile for name, tile in content.items() if name not in of_heads}, [*notes, TOO_LARGE]
        index = {name: self.tiles.index[name] for name in content}
        return _pieces(self.document | {"tiles": index, "notes": notes}, content, of_heads)

    def folder_page(self, **more: Any) -> str:
        """Return the page that fetches its data from beside it, tile by tile; ``more`` are values of the document."""
        return "".join(_pieces(self.document | {"tiles": self.tiles.index} | more, {}, set(), connect="'self'"))

    def write_page(self, path: str | Path) -> Path:
        """Write one file; raise CallError where another file, which is no page of sinkscope, would be lost."""
        path = Path(path)
        if path.exists() and (not path.is_file() or MARK not in path.read_bytes()):
            raise CallError(f"{path} is no explorer page that might be replaced; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (piece.encode() for piece in self._page(LARGEST_PAGE)))
        return path

    def write_folder(self, folder: str | Path) -> Path:
        """Write a new folder for any web server, with a small file for each tile, and return its ``index.html``."""
        with new_folder(Path(folder), TraceError, "the explorer", "index.html") as place:
            (place / "data").mkdir()
            for name, content in self.tiles.content.items():
                write_whole(place / tile_path(name), content)
            write_whole(place / "index.html", self.folder_page().encode())
        return Path(folder) / "index.html"


def tile_path(name: str) -> str:
    """Return the place of a tile beside the page."""
    return f"data/{name.replace('/', '-')}.bin"


def explore(
    *traces: Trace | str | Path | Sequence[Trace | str | Path],
    excess: float = 3.0,
    roles: Roles | None = None,
    lens: Mapping[str, Any] | None = None,
) -> Explorer:
    """Return the explorer of one or more traces; the first two are shown side by side. A notebook shows it in place.

    Args:
        traces: open ones or their paths, one by one or in a list.
        excess: ε of Eq. 3, in queries' worth.
        roles: what the sinks of the model do (`find_roles`), for the traces of its weights.
        lens: what each layer would predict at sinks (`Lens.as_dict`), of the weights of one of the traces.

    Raises:
        CallError: no traces, roles or a lens of none of them, or a threshold that cannot hold.
        TraceError: a trace without a whole step, or a damaged one.
    """
    opened = [as_trace(one) for group in traces for one in (group if isinstance(group, list | tuple) else [group])]
    if not opened:
        raise CallError("expected at least one trace, found none")
    theirs = [roles is not None and roles.are_of(trace.manifest.get("model", {})) for trace in opened]
    if roles is not None and not any(theirs):
        wanted = f"expected a trace of {roles.model}, whose roles were given"
        raise CallError(f"{wanted}, found traces of other weights or another config.json")
    hashes = {trace.manifest.get("model", {}).get("weight_hash") for trace in opened}
    if lens is not None and lens.get("weight_hash") not in hashes:
        raise CallError(f"expected a lens of the weights of a trace, found one of {lens.get('model')}")
    tiles, shown = Tiles(), []
    labels = model_labels([trace.manifest for trace in opened])
    for number, (trace, label, known) in enumerate(zip(opened, labels, theirs, strict=True)):
        expect_steps(trace, "show")
        if hidden := hidden_rules(trace.manifest):
            label = f"{label}: {', '.join(rule.partition('(')[0] for rule in hidden)}"
        shown.append(add_trace(tiles, number, trace, label, excess, roles if known else None))
    sizes = [", ".join(counted(one[f"{noun}s"], noun) for noun in ("step", "layer", "head")) for one in shown]
    who = " and ".join(f"{one['label']} ({one['kind']}, {size})" for one, size in zip(shown, sizes, strict=True))
    causal = " (of a causal model: uniform attention)" * any(trace.causal for trace in opened)
    lead = f"{who}. A head’s main sink exceeds the mean of the other columns{causal} most, by over {excess:g} queries."
    notes = []
    for one in shown:
        if not one["complete"]:
            notes.append(f"{one['label']}: incomplete, shown as far as it goes: {counted(one['steps'], 'whole step')}.")
        if one["level"] == "top":
            kept = f"{one['label']}: the trace keeps the {counted(one['kept'], 'largest column')} of each head"
            notes.append(f"{kept}; all other tokens are drawn with the mean of the others.")
    widest = max(highest - lowest for lowest, highest in (one["confidenceRange"] for one in shown))
    words = {
        "Sink (Eq. 3)": f"A token whose column exceeds the mean of the other columns{causal} by more than {excess:g} "
        "queries’ worth.",
        "Exactness": "Statistics, main sinks, moves and swaps are those of the trace. The largest "
        f"{STRONGEST} columns of each step and head are exact and shown without “≈”. Everything else is stored in one "
        "byte by its logarithm; the largest relative error is below. Confidences are within "
        f"{widest * 1e-5:.5f}.",
    }
    document = {"excess": excess, "lead": lead, "notes": notes, "words": list(words.items()), "traces": shown}
    return Explorer(document | {"lens": None if lens is None else _with_visible_tokens(lens)}, tiles)


def _with_visible_tokens(lens: Mapping[str, Any]) -> dict[str, Any]:
    groups = []
    for one in lens["groups"]:
        tops = [top if top["text"] is None else top | {"text": text_label(top["text"])} for top in one["top"]]
        groups.append(one | {"top": tops})
    return {**lens, "groups": groups}


def _pieces(
    document: dict[str, Any], content: Mapping[str, bytes], late: set[str], connect: str = "'none'"
) -> Iterator[str]:
    """Yield the page: only its own script may run, and every `<` of the data is escaped, so that no token ends a block.
    Tiles that are ``late`` come behind the script, so that a large page is drawn before it has been read to its end.
    """
    names = ("explorer.html", "explorer.css", *(f"{one}.js" for one in SCRIPTS))
    body, style, *scripts = ((ASSETS / name).read_text(encoding="utf-8") for name in names)
    script = '"use strict";\n(() => {\n' + "\n".join(scripts) + "\n})();\n"
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; connect-src "
        f"{connect}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = escape(" and ".join(one["label"] for one in document["traces"]))

    def blocks(behind: bool) -> Iterator[str]:
        for name in content:
            if (name in late) is behind:
                tile = base64.b64encode(content[name]).decode()
                yield f'<script type="text/plain" id="tile:{escape(name)}">{tile}</script>\n'

    yield '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<title>{title}{MARK.decode()}\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
    yield f'<body>\n{body}<script type="application/json" id="explorer">{data}</script>\n'
    yield from blocks(False)
    yield f"<script>{script}</script>\n"
    yield from blocks(True)
    yield "</body>\n</html>\n"


class ExplorerServer(ThreadingHTTPServer):
    """A web server for one explorer. It reads no files: it answers with the page, its tiles and attention maps only.
    ``traces`` are in the order of the explorer; port 0 takes a free one, CallError for one that is taken.
    """

    def __init__(self, explorer: Explorer, traces: Sequence[Trace], maps: Maps, port: int = 0) -> None:
        self.explorer, self.traces, self.maps = explorer, traces, maps
        self.index = explorer.folder_page(served=True).encode()
        self.tiles = {f"/{tile_path(name)}": content for name, content in explorer.tiles.content.items()}
        self._one_at_a_time = Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise CallError(f"port {port}: expected a free one ({error}); leave --port out to take any") from error

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

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

    def begin_no_map(self) -> bool:
        """From now on compute no other map; return whether none is being computed either."""
        return self._one_at_a_time.acquire(blocking=False)

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # of a tab that was closed
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server_version = "sinkscope"
    sys_version = ""
    timeout = 60  # seconds that a connection may say nothing

    def do_GET(self) -> None:
        server, (path, _, query) = cast(ExplorerServer, self.server), self.path.partition("?")
        port, origin = server.server_port, self.headers.get("Origin")
        hosts = {f"{name}:{port}" for name in NAMES} | ({*NAMES} if port == HTTP_PORT else set())  # browsers omit it
        own = self.headers.get("Host") in hosts and (origin is None or origin in {f"http://{host}" for host in hosts})
        if not own:  # another site must not read the page through a name that it owns
            self._answer(403, "text/plain", b"expected a request from this machine's own page\n")
        elif path == "/map":
            try:
                found = server.attention_map(query)
                shape = {"X-Queries": str(found.shape[0])}
                self._answer(200, "application/octet-stream", found.tobytes(), shape)
            except (SinkscopeError, RuntimeError, MemoryError) as error:  # torch's, such as too little memory
                self._answer(422, "application/json", json.dumps({"error": first_line(error)}).encode())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", server.index)
        elif path in server.tiles:
            self._answer(200, "application/octet-stream", server.tiles[path])
        else:
            self._answer(404, "text/plain", b"no such page\n")

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
        pass
