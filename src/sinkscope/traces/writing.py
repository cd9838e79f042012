"""Writes one trace in parts; a part is closed after 16 steps, 2 seconds or 64 MiB, whichever comes first."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.argument_types import checked
from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.documents import files_in
from sinkscope.errors import CallError, TraceError
from sinkscope.locks import names_in
from sinkscope.traces.format import FORMAT, MANIFEST, PART, PART_GLOB, write_manifest
from sinkscope.traces.part_files import write_part
from sinkscope.work_items import UNFINISHED, read_object

STEPS_PER_PART = 16
SECONDS_PER_PART = 2.0
BYTES_PER_PART = 64 << 20
ASIDE = f".replaced{UNFINISHED}"
"""Where a trace waits that is to be replaced, until the new one begins."""

Step = dict[str, np.ndarray]


@checked
def claim_folder(folder: Path, overwrite: bool | None = False) -> None:
    """Make an empty folder for a trace.

    Args:
        overwrite: deletes the traces or statistics that it holds; nothing is deleted where it holds anything else. None where the caller
            has no such option.

    Raises:
        CallError: it holds something already.
        TraceError: it cannot be made, or what it holds cannot be deleted.
    """
    if _holds_trace(folder, overwrite):
        _delete(folder)


@dataclass
class Room:
    """An empty folder for a trace; what it held before comes back where nothing is recorded.

    Attributes:
        recorded: says at the end whether anything was.
    """

    recorded: Callable[[], bool] = lambda: False


@contextmanager
def room_in(folder: Path, overwrite: bool) -> Iterator[Room]:
    """Make an empty folder for a trace, as `claim_folder` does; traces that are to be replaced are kept aside until one is recorded.

    Raises:
        CallError, TraceError: see `claim_folder`.
    """
    replaces, folder = _holds_trace(folder, overwrite), folder.absolute()  # the body may change the current folder
    aside, room = folder / ASIDE, Room()
    if replaces:
        if names_in(folder) != [ASIDE]:
            shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
        _move(folder, aside)
    try:
        yield room
    finally:
        if room.recorded():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            if _not_recorded(folder) is None:
                _delete(folder, keep=ASIDE)
            if replaces:
                _move(aside, folder)
                aside.rmdir()


def _move(source: Path, target: Path) -> None:
    try:
        target.mkdir(exist_ok=True)
        for name in names_in(source):
            if name != ASIDE:
                (source / name).rename(target / name)
    except OSError as error:
        raise TraceError(f"{source}: its trace cannot be moved to {target} ({error.strerror or error}); choose another folder") from error


def _delete(folder: Path, keep: str = "") -> None:
    try:
        for path in (folder / name for name in names_in(folder) if name != keep):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise TraceError(f"{error.filename or folder} cannot be deleted ({error.strerror}); choose another folder") from error


def _holds_trace(folder: Path, overwrite: bool | None) -> bool:
    """Make the folder of a trace where there is none, and return whether it holds traces that may be deleted.

    Raises:
        CallError, TraceError: see `claim_folder`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(iter(names_in(folder)), None)
    except NotADirectoryError as error:
        raise CallError(f"{folder}: expected a folder for the trace, found a file on the way") from error
    except FileExistsError as error:
        raise CallError(f"{folder} is a file; a trace is a folder, choose another name") from error
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    if found is None:
        return False
    inner = [one / MANIFEST for one in files_in(folder, "*", TraceError) if one.is_dir()]
    if not any(_is_recording(path) for path in (folder / MANIFEST, *inner)):
        raise CallError(f"{folder} already holds files ({found} …); choose another folder or delete this one")
    if not overwrite:
        advice = "choose another folder" + (", or replace it: overwrite=True, --overwrite" if overwrite is not None else "")
        raise CallError(f"{folder} already holds a trace; {advice}")
    if foreign := _not_recorded(folder):
        raise CallError(f"{folder} holds {foreign.name} beside its trace, and overwrite deletes traces only; choose another folder")
    return True


def _is_recording(path: Path) -> bool:
    """Return whether a manifest is that of a trace or of statistics; a damaged one may be."""
    found: dict[str, Any] | None = read_object(path) if path.exists() else {"format": None}
    return found is None or found.get("format", FORMAT) == FORMAT


_RECORDED = re.compile(r"(manifest\.json|steps-\d+\.safetensors|map-[-\d]+\.safetensors|statistics\.safetensors)(\.\d+\.writing)?|\.lock")
_ITEM = re.compile(r"\d+\.safetensors(\.\d+\.writing)?")


def _not_recorded(folder: Path, deep: bool = True) -> Path | None:
    """Return a file or folder that no recording wrote, None where there is none; ``deep`` allows numbered traces."""
    for path in (folder / name for name in names_in(folder)):
        if path.is_symlink() or not path.is_dir():
            fits = _RECORDED.fullmatch(path.name) is not None
        elif path.name == ASIDE:
            fits = True
        elif path.name == "items":
            fits = all(_ITEM.fullmatch(one.name) for one in path.iterdir())
        else:
            fits = deep and path.name.isdecimal() and _not_recorded(path, deep=False) is None
        if not fits:
            return path
    return None


class TraceWriter:
    """Collects the steps of one generation and writes them part by part.

    Args:
        folder: an empty folder, see `claim_folder`.
        manifest: what is known before the first step; format, axes and parts are added here.
        reduce: what is kept of a step; None keeps all of it.

    Attributes:
        held: bytes of the steps that wait for their part to be closed.
    """

    @checked
    def __init__(self, folder: str | Path, manifest: dict[str, Any], reduce: Callable[[Step], Step] | None = None) -> None:
        self.folder, self._reduce = Path(folder), reduce
        self.manifest = {
            "format": FORMAT,
            "complete": False,
            **manifest,
            "steps": 0,
            "axes": {name: list(axes) for name, axes in TRACE_AXES.items()},
            "units": TRACE_UNITS,
            "parts": [],
        }
        self.held = 0
        self._steps: list[Step] = []
        self._opened = time.monotonic()
        write_manifest(self.folder, self.manifest)

    @checked
    def add(self, step: Step) -> None:
        """Add a step: arrays as in `axes.TRACE_AXES`, without the step axis; position and key axes may grow."""
        step = step if self._reduce is None else self._reduce(step)
        self._steps.append(step)
        self.held += sum(array.nbytes for array in step.values())
        late = time.monotonic() - self._opened >= SECONDS_PER_PART
        if late or len(self._steps) >= STEPS_PER_PART or self.held >= BYTES_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write the steps that wait, as one part, and list it, so that it is checked also where a kill ends the generation."""
        if self._steps:
            self._write_part()
            write_manifest(self.folder, self.manifest)

    def _write_part(self) -> None:
        name, first, count = PART.format(len(self.manifest["parts"])), self.manifest["steps"], len(self._steps)
        checksum = write_part(self.folder / name, self._steps, {"first_step": str(first), "steps": str(count)})
        self.manifest["parts"].append({"file": name, "first_step": first, "steps": count, "sha256": checksum})
        self.manifest["steps"] += count
        self._steps, self.held, self._opened = [], 0, time.monotonic()

    def close(self, complete: bool, **more: Any) -> None:
        """Write the remaining steps and the final manifest."""
        if self._steps:
            self._write_part()
        self.manifest.update(more, complete=complete)
        write_manifest(self.folder, self.manifest)


@checked
def move_trace(source: Path, target: Path) -> None:
    """Move the files of a trace into a new folder.

    Raises:
        TraceError: they cannot be moved.
    """
    try:
        target.mkdir()
        for path in [*files_in(source, PART_GLOB, TraceError), source / MANIFEST]:
            path.rename(target / path.name)
    except OSError as error:
        raise TraceError(f"{source}: its trace cannot be moved to {target} ({error.strerror or error})") from error
