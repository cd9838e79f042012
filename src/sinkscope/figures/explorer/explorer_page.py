"""`Explorer`: the page to scrub through steps, layers, heads and tokens, as one file or as a folder of small ones."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sinkscope.counts import counted
from sinkscope.errors import CallError, TraceError
from sinkscope.figures.drawing import make_folder
from sinkscope.figures.explorer.recorded_views import STRONGEST, ShownTrace, add_trace
from sinkscope.figures.explorer.tiles import Tiles
from sinkscope.figures.style import model_labels
from sinkscope.roles.head_roles import Roles
from sinkscope.runs.files import UNFINISHED
from sinkscope.runs.folder import claimed_folder, names_in
from sinkscope.traces import Trace
from sinkscope.traces.format import hidden_rules, write_whole
from sinkscope.traces.reading import as_trace, expect_steps

SCRIPTS = (
    "data",
    "selection",
    "drawing",
    "heads_view",
    "trace_view",
    "charts",
    "difference",
    "attention_map",
    "explorer",
)
LARGEST_PAGE = 64_000_000
"""Bytes of tiles up to which one page holds every head; a larger one keeps the strongest columns and the means."""
LARGEST_INLINE = 16_000_000
"""The same inside a notebook, where the page travels through the kernel."""
MARK = b" \xc2\xb7 sinkscope</title>"
INLINE_HEIGHT = 900
NO_WIDGET = (
    "the explorer is shown inside a notebook by anywidget, which is not installed: pip install 'sinkscope[notebook]'"
)


@dataclass(frozen=True)
class Explorer:
    """What the page shows; a notebook shows the page itself (extra ``notebook``).

    Attributes:
        document: everything but the arrays, as plain values.
        tiles: the arrays.
    """

    document: dict[str, Any] = field(repr=False)
    tiles: Tiles = field(repr=False)

    def __repr__(self) -> str:
        return f"Explorer({' and '.join(one['label'] for one in self.document['traces'])})"

    def widget(self, height: int = INLINE_HEIGHT) -> Any:
        """Return the page as an anywidget for Jupyter, VS Code and marimo; above `LARGEST_INLINE` without single heads.

        Args:
            height: in pixels.

        Raises:
            CallError: anywidget is not installed.
        """
        try:
            from sinkscope.figures.explorer.notebook_widget import ExplorerWidget
        except ImportError as error:
            raise CallError(f"{NO_WIDGET} (`sinkscope explore TRACE` writes the page as a file)") from error
        return ExplorerWidget(page=self.page(LARGEST_INLINE), height=height)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return what Jupyter and VS Code show."""
        try:
            return self.widget()._repr_mimebundle_(**options)
        except CallError as error:
            return {"text/plain": f"{self!r}: {error}"}

    def _display_(self) -> Any:
        """Return what marimo shows."""
        return self.widget()

    def page(self, largest: int | None = None) -> str:
        """Return the page as one file that holds all its data, without single heads where the trace is too large.

        Args:
            largest: bytes of tiles that are not yet too many; `LARGEST_PAGE` when None.
        """
        return "".join(self._page(LARGEST_PAGE if largest is None else largest))

    def _page(self, most: int) -> Iterator[str]:
        """Return the page in pieces; without its single heads where its tiles are more than ``most`` bytes."""
        tiles = self.tiles if self.tiles.size <= most else _without_heads(self.tiles, self.document)
        notes = [] if tiles is self.tiles else [
            f"This trace is too large for one page: single heads show their {STRONGEST} largest columns of each step "
            "only. A folder shows all: sinkscope explore TRACE --out FOLDER."
        ]  # fmt: skip
        document = self.document | {"tiles": tiles.index, "notes": self.document["notes"] + notes}
        return _pieces(document, tiles.content, _of_heads(self.document))

    def folder_page(self, **more: Any) -> str:
        """Return the page that fetches its data from beside it, tile by tile.

        Args:
            more: further values of the document.
        """
        return "".join(_pieces(self.document | {"tiles": self.tiles.index} | more, {}, frozenset(), connect="'self'"))

    def write_page(self, path: str | Path) -> Path:
        """Write one file.

        Raises:
            CallError: the path holds a file that is no page of sinkscope.
            TraceError: it cannot be written.
        """
        path = Path(path)
        check_page(path)
        make_folder(path.parent)
        write_whole(path, (piece.encode() for piece in self._page(LARGEST_PAGE)))
        return path

    def write_folder(self, folder: str | Path) -> Path:
        """Write a folder for any web server, with ``index.html`` and a small file for each tile; return the former.

        The tiles of an earlier page stay until the new one is whole; those of two pages have folders of their own.

        Raises:
            CallError: the folder holds something else.
            TraceError: it cannot be written.
        """
        folder = Path(folder)
        with claimed_folder(folder, TraceError):
            foreign = [
                name
                for name in names_in(folder)
                if name not in ("index.html", "data") and not name.endswith(UNFINISHED)
            ]
            if foreign:
                raise CallError(
                    f"{folder} holds files of something else ({foreign[0]} …); choose another folder or an empty one"
                )
            check_page(folder / "index.html")
            place = f"data/{self.tiles.digest}"
            make_folder(folder / place)
            for left in folder.rglob(f"*{UNFINISHED}"):
                left.unlink()  # of a run that was killed; this one alone writes here
            for name, content in self.tiles.content.items():
                write_whole(folder / place / tile_file(name), content)
            write_whole(folder / "index.html", self.folder_page(place=f"{place}/").encode())
            _remove_tiles(folder / "data", but=self.tiles.digest)
        return folder / "index.html"


def check_page(path: Path) -> None:
    """Raise CallError for a file that is no page of sinkscope, which a page would replace."""
    if path.exists() and (not path.is_file() or MARK not in path.read_bytes()):
        raise CallError(f"{path}: expected no file, or an explorer page to replace, found another; choose another name")


def tile_file(name: str) -> str:
    """Return the name of the file of a tile."""
    return f"{name.replace('/', '-')}.bin"


def tile_path(name: str) -> str:
    """Return where the page of a server looks for a tile."""
    return f"data/{tile_file(name)}"


def _remove_tiles(data: Path, but: str) -> None:
    """Remove the tiles of earlier pages."""
    for path in (data / name for name in names_in(data) if name != but):
        if path.is_dir() and re.fullmatch("[0-9a-f]{16}", path.name):
            shutil.rmtree(path)


def explore(
    *traces: Trace | str | Path | Sequence[Trace | str | Path], excess: float = 3.0, roles: Roles | None = None
) -> Explorer:
    """Return the explorer of one or more traces; the first two are shown side by side. A notebook shows it in place.

    Args:
        traces: open ones or their paths, one by one or in a list.
        excess: ε of Eq. 3, in queries' worth.
        roles: what the sinks of the model do (`find_roles`). They apply to the traces of its weights.

    Raises:
        CallError: no traces, roles of none of them, or a threshold that cannot hold.
        TraceError: a trace without a whole step, or a damaged one.
    """
    opened = [as_trace(one) for group in traces for one in (group if isinstance(group, list | tuple) else [group])]
    if not opened:
        raise CallError("expected at least one trace, found none")
    theirs = [roles is not None and roles.are_of(trace.manifest.get("model", {})) for trace in opened]
    if roles is not None and not any(theirs):
        raise CallError(
            f"expected a trace of {roles.model}, whose roles were given, found traces of other weights or another "
            "config.json"
        )
    tiles, shown = Tiles(), []
    for number, (trace, label) in enumerate(zip(opened, _labels(opened), strict=True)):
        expect_steps(trace, "show")
        known = roles if theirs[number] else None
        shown.append(add_trace(tiles, number, ShownTrace.of(trace, label, excess, known)))
    return Explorer(
        {
            "excess": excess,
            "lead": _lead(shown, excess),
            "notes": _notes(shown),
            "words": _words(excess, shown),
            "traces": shown,
        },
        tiles,
    )


def _labels(traces: Sequence[Trace]) -> list[str]:
    """Return a name of each trace: its model, with what was hidden, and its folder where both are the same."""
    names = []
    for trace, label in zip(traces, model_labels([trace.manifest for trace in traces]), strict=True):
        hidden = hidden_rules(trace.manifest)
        names.append(f"{label}: {', '.join(hidden)}" if hidden else label)
    return names


def _lead(traces: Sequence[dict[str, Any]], excess: float) -> str:
    who = " and ".join(
        f"{one['label']} ({one['kind']}, "
        f"{', '.join(counted(one[f'{noun}s'], noun) for noun in ('step', 'layer', 'head'))})"
        for one in traces
    )
    return (
        f"{who}. A sink is a token that receives more than {excess:g} queries’ worth of attention above what the "
        "others of its head receive on average; the largest is the head’s main sink."
    )


def _notes(traces: Sequence[dict[str, Any]]) -> list[str]:
    notes = [
        f"{one['label']}: incomplete, shown as far as it goes: {counted(one['steps'], 'whole step')}."
        for one in traces
        if not one["complete"]
    ]
    for one in traces:
        if one["level"] == "top":
            notes.append(
                f"{one['label']}: the trace keeps the {counted(one['kept'], 'largest column')} of each head; all other "
                "tokens are drawn with the mean of the others."
            )
    return notes


def _words(excess: float, traces: Sequence[dict[str, Any]]) -> list[list[str]]:
    widest = max(highest - lowest for lowest, highest in (one["confidenceRange"] for one in traces))
    return [
        [
            "Column",
            "The attention that a token receives from all queries of one head, added up, in queries’ worth: 1 is as "
            "much as one query has to give. A token that received the same as all others would have 1.",
        ],
        [
            "Sink (Eq. 3)",
            f"A token whose column exceeds the mean of the other columns by more than {excess:g} queries’ worth.",
        ],
        ["Main sink", "The largest column of a head, where it is a sink."],
        [
            "Move and swap",
            "The main sink stands elsewhere than in the step before. In a swap both places are sinks before and "
            "after; in a move the old place stops being a sink or the new one was none.",
        ],
        [
            "Autoregressive models and block diffusion",
            "Sinks are followed in the attention from the 16 newest queries, in block diffusion from the newest "
            "blocks of 16 or more, because sums over all queries can hardly move. The number of sinks and their "
            "share of attention are those of all queries.",
        ],
        [
            "Exactness",
            f"Statistics, main sinks, moves and swaps are those of the trace. The largest {STRONGEST} columns of each "
            "step and head are exact and shown without “≈”. Everything else is stored in one byte by its logarithm; "
            f"the largest relative error is below. Confidences are within {widest * 1e-5:.5f}.",
        ],
    ]


def _of_heads(document: dict[str, Any]) -> frozenset[str]:
    """Return the names of the tiles of single heads, which are most of the data."""
    return frozenset(
        f"{number}/{quantity['name']}/{layer}"
        for number, one in enumerate(document["traces"])
        for quantity in one["quantities"]
        for layer in range(one["layers"])
    )


def _without_heads(tiles: Tiles, document: dict[str, Any]) -> Tiles:
    """Return the tiles without those of single heads."""
    names = [name for name in tiles.content if name not in _of_heads(document)]
    return Tiles({name: tiles.index[name] for name in names}, {name: tiles.content[name] for name in names})


def _pieces(
    document: dict[str, Any], content: Mapping[str, bytes], late: frozenset[str], connect: str = "'none'"
) -> Iterator[str]:
    """Yield the page: only its own script may run, and every `<` of the data is escaped, so that no token ends a block.

    Args:
        content: tiles that the page holds.
        late: those that come behind the script, so that a large page is drawn before it has been read to its end.
    """
    body, style, script = _assets()
    policy = (
        f"default-src 'none'; script-src '{_source_hash(script)}'; style-src '{_source_hash(style)}'; connect-src "
        f"{connect}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = escape(" and ".join(one["label"] for one in document["traces"]))

    def block(name: str) -> str:
        return (
            f'<script type="text/plain" id="tile:{escape(name)}">{base64.b64encode(content[name]).decode()}</script>\n'
        )

    yield '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<title>{title}{MARK.decode()}\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
    yield f"<body>\n{body}"
    yield f'<script type="application/json" id="explorer">{data}</script>\n'
    yield from (block(name) for name in content if name not in late)
    yield f"<script>{script}</script>\n"
    yield from (block(name) for name in content if name in late)
    yield "</body>\n</html>\n"


@cache
def _assets() -> tuple[str, str, str]:
    """Return the body, the style and the script of the page."""
    folder = files("sinkscope.figures.explorer") / "assets"
    read = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("explorer.html", "explorer.css", *(f"{one}.js" for one in SCRIPTS))
    }
    script = '"use strict";\n(() => {\n' + "\n".join(read[f"{one}.js"] for one in SCRIPTS) + "\n})();\n"
    return read["explorer.html"], read["explorer.css"], script


def _source_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
