"""Destinations of recorded steps, which open a writer for each prompt; `TraceFolders` writes traces."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sinkscope.traces import TraceWriter, claim_folder, move_trace
from sinkscope.traces.trace_array import keep_top


class StepWriter(Protocol):
    """Takes the steps of one prompt, in order, as a `TraceWriter` does; ``held`` are bytes that wait in memory."""

    held: int

    def add(self, step: dict[str, np.ndarray]) -> None: ...

    def flush(self) -> None: ...

    def describe(self, **more: Any) -> None: ...

    def close(self, complete: bool, **more: Any) -> None: ...


class Destination(Protocol):
    """Makes the writers of a recording, at a level of detail; ``folders`` are those of the traces so far."""

    level: str
    folders: tuple[Path, ...]

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[StepWriter]:
        """Return a writer for each prompt; ``several`` is whether the generation makes more than one trace."""


class TraceFolders:
    """Writes a trace for each prompt: in the folder itself if it stays the only one, else in numbered folders within.

    Args:
        out: an empty folder.
        numbered: numbers also the only trace.
        top: how many of the largest columns of each head are kept; None keeps all.
    """

    def __init__(self, out: Path, numbered: bool = False, top: int | None = None) -> None:
        self.out, self.numbered, self.top = out, numbered, top
        self.level = "columns" if top is None else "top"
        self.folders: tuple[Path, ...] = ()
        self._first: TraceWriter | None = None

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[StepWriter]:
        if self._first is not None and self.folders == (self.out,):  # a second trace makes the first a numbered one
            numbered = self.out / "000000"
            move_trace(self.out, numbered)
            self._first.folder, self.folders = numbered, (numbered,)
        reduce = None if self.top is None else partial(keep_top, count=self.top)
        writers: list[StepWriter] = []
        for manifest in manifests:
            alone = not several and not self.folders and not self.numbered
            folder = self.out if alone else self.out / f"{len(self.folders):06d}"
            if not alone:
                claim_folder(folder)
            writer = TraceWriter(folder, manifest, reduce, trusted=True)
            self.folders += (folder,)
            self._first = self._first or writer
            writers.append(writer)
        return writers
