"""Writes one trace in parts; a part is closed after 16 steps, 2 seconds or 64 MiB, whichever comes first."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError
from sinkscope.runs.files import UNFINISHED, checksum_of, read_object
from sinkscope.runs.folder import CLAIM, made_folder, names_in
from sinkscope.traces.format import ASIDE, DRIFT, FORMAT, MANIFEST, PART, PART_GLOB, write_manifest, write_part

STEPS_PER_PART = 16
SECONDS_PER_PART = 2.0
BYTES_PER_PART = 64 << 20
MOVING = f"{ASIDE}.moving"
"""The name of `ASIDE` while files are moved there or back."""
_RECORDED = re.compile(
    r"((\.replaced\.writing(\.moving)?/)?(\d+/)?(manifest\.json|steps-\d+\.safetensors|map-[-\d]+\.safetensors"
    r"|statistics\.safetensors|items/\d+\.safetensors|drift\.json|drift-by-layer\.(png|pdf|csv)|\.lock))"
    r"(\.\d+\.writing)?"
)
"""Paths of the files that a recording writes."""

Step = dict[str, np.ndarray]


def claim_folder(folder: str | Path, overwrite: bool | None = False) -> None:
    """Make an empty folder for a trace; raise CallError where it holds something. ``overwrite`` deletes the recordings
    that it holds, if it holds nothing else; it is None for a caller without the option.
    """
    if _holds_recording(Path(folder), overwrite):
        _delete(Path(folder))


@contextmanager
def room_in(folder: Path, overwrite: bool, recorded: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Make an empty folder for a trace, as `claim_folder` does; the recording that it replaces waits aside, and comes
    back where nothing is ``recorded`` at the end.
    """
    replaces, folder = _holds_recording(folder, overwrite), folder.absolute()
    if replaces:
        _put_aside(folder)
    try:
        yield
    finally:
        if recorded():
            shutil.rmtree(folder / ASIDE, ignore_errors=True)
        else:
            if not _foreign_in(folder):
                _delete(folder, keep=ASIDE)
            if replaces:
                _bring_back(folder)


def _put_aside(folder: Path) -> None:
    """Move a recording aside, unless a killed run has put one there and recorded nothing in its place."""
    if (folder / ASIDE).exists() and not (folder / MOVING).exists():
        recorded = (PART_GLOB, f"[0-9]*/{PART_GLOB}", DRIFT, "statistics.safetensors", "items/*.safetensors")
        if not any(path for pattern in recorded for path in folder.glob(pattern)):
            _delete(folder, keep=ASIDE)
            return
        shutil.rmtree(folder / ASIDE)
    (folder / MOVING).mkdir(exist_ok=True)
    for name in names_in(folder):
        if name != MOVING:
            (folder / name).rename(folder / MOVING / name)
    (folder / MOVING).rename(folder / ASIDE)


def _bring_back(folder: Path) -> None:
    (folder / ASIDE).rename(folder / MOVING)
    for name in names_in(folder / MOVING):
        (folder / MOVING / name).rename(folder / name)
    (folder / MOVING).rmdir()


def _delete(folder: Path, keep: str = "") -> None:
    for path in (folder / name for name in names_in(folder) if name != keep):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _holds_recording(folder: Path, overwrite: bool | None) -> bool:
    """Make the folder if there is none, and return whether it holds a recording that may be deleted."""
    with made_folder(folder):
        pass
    names = _files_in(folder)
    ours = [name for name in names if name.endswith((MANIFEST, DRIFT, UNFINISHED, ".lock"))]
    if foreign := _foreign_in(folder) or (names and not ours and names[0]):
        raise CallError(f"{folder} already holds files ({foreign} …); choose another folder or delete this one")
    if all(name.endswith((UNFINISHED, ".lock")) and not name.startswith(ASIDE) for name in names):
        _delete(folder)  # a process that was killed has recorded nothing
        return False
    if not overwrite:
        counted = any(name.startswith(("statistics", "items")) for name in names)
        held = "statistics" if counted else "files of a recording of drift" if DRIFT in names else "a trace"
        advice = "" if overwrite is None else ", or replace it: overwrite=True, --overwrite"
        raise CallError(f"{folder} already holds {held}; choose another folder{advice}")
    return True


def _files_in(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.name != CLAIM and not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in paths]


def _foreign_in(folder: Path) -> str:
    """Return the name of a file that no recording wrote; a damaged manifest may be one's."""
    for name in _files_in(folder):
        found = read_object(folder / name) if name.endswith((MANIFEST, DRIFT)) else None
        if not _RECORDED.fullmatch(name) or (found is not None and found.get("format") != FORMAT):
            return name
    return ""


class TraceWriter:
    """Collects the steps of one generation and writes them part by part into an empty folder, see `claim_folder`.

    ``reduce`` returns the arrays of a step that are kept, by default all; ``held``: bytes of the steps that wait.
    """

    def __init__(
        self, folder: str | Path, manifest: dict[str, Any], reduce: Callable[[Step], Step] | None = None
    ) -> None:
        self.folder, self._reduce = Path(folder), reduce
        self._generation = ""
        axes = {name: list(axes) for name, axes in TRACE_AXES.items()}
        self.manifest = {"format": FORMAT, "complete": False, **manifest, "steps": 0, "axes": axes}
        self.manifest |= {"units": TRACE_UNITS, "parts": []}
        if (self.folder / MANIFEST).exists():
            raise CallError(f"{folder} already holds a trace; choose another folder, or claim_folder(folder, True)")
        self.held = 0
        self._steps: list[Step] = []
        self._opened = time.monotonic()
        write_manifest(self.folder, self.manifest)

    def add(self, step: Step) -> None:
        """Add a step: arrays as in `axes.TRACE_AXES`, without the step axis; position and key axes may grow."""
        step = step if self._reduce is None else self._reduce(step)
        self._steps.append(step)
        self.held += sum(array.nbytes for array in step.values())
        late = time.monotonic() - self._opened >= SECONDS_PER_PART
        if late or len(self._steps) >= STEPS_PER_PART or self.held >= BYTES_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Write the steps that wait, as one part, and list it; see `write_part`."""
        if not self._steps:
            return
        name, first, count = PART.format(len(self.manifest["parts"])), self.manifest["steps"], len(self._steps)
        if not self._generation:  # the same in every part, so that none of another generation is taken for one of this
            tokens = self._steps[0].get("tokens", np.zeros(0, np.int32))
            made = {key: value for key, value in self.manifest.items() if key != "command"}
            self._generation = checksum_of({**made, "tokens": tokens.tolist()})
        about = {"first_step": str(first), "steps": str(count), "generation": self._generation}
        checksum = write_part(self.folder / name, self._steps, about, self.manifest)
        self.manifest["parts"].append({"file": name, "first_step": first, "steps": count, "sha256": checksum})
        self.manifest["steps"] += count
        self._steps, self.held, self._opened = [], 0, time.monotonic()
        write_manifest(self.folder, self.manifest)

    def describe(self, **more: Any) -> None:
        """Set keys of the manifest; they are written with the next part."""
        self.manifest.update(more)

    def move(self, folder: Path) -> None:
        """Move the files of the trace into a new folder."""
        folder.mkdir()
        for path in [*self.folder.glob(PART_GLOB), self.folder / MANIFEST]:
            path.rename(folder / path.name)
        self.folder = folder

    def close(self, complete: bool, **more: Any) -> None:
        """Write the remaining steps and the final manifest."""
        self.flush()
        self.manifest.update(more, complete=complete)
        write_manifest(self.folder, self.manifest)
