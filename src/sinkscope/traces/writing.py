"""Writing one trace: steps go into parts of at most 16 steps or 2 seconds."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import FORMAT, MANIFEST, PART, PART_GLOB, checksum, write_manifest, write_whole

STEPS_PER_PART = 16
SECONDS_PER_PART = 2.0

_FILL: dict[str, Any] = {
    "tokens": -1,
    "written": -1,
    "predicted": -1,
    "masked": 0,
    "lengths": 0,
    "top_column_sums_key": -1,
    "top_last_query_key": -1,
}


def claim_folder(folder: Path) -> None:
    """Makes the folder a trace will go to.

    Raises:
        CallError: it holds something already.
        TraceError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(folder.iterdir(), None)
    except NotADirectoryError as error:
        raise CallError(f"{folder}: expected a folder for the trace, found a file on the way") from error
    except FileExistsError as error:
        raise CallError(f"{folder} is a file; a trace is a folder, choose another name") from error
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    if found is not None:
        what = "a trace" if (folder / MANIFEST).exists() or list(folder.glob(f"*/{MANIFEST}")) else f"files ({found.name} …)"
        raise CallError(f"{folder} already holds {what}; choose another folder or delete this one")


class TraceWriter:
    """Collects the steps of one generation and writes them part by part.

    Args:
        folder: an empty folder, see `claim_folder`.
        manifest: everything known before the first step; format, axes and parts are added here.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = {
            "format": FORMAT,
            "complete": False,
            **manifest,
            "steps": 0,
            "axes": {name: list(axes) for name, axes in TRACE_AXES.items()},
            "units": TRACE_UNITS,
            "parts": [],
        }
        self._steps: list[dict[str, np.ndarray]] = []
        self._opened = time.monotonic()
        write_manifest(folder, self.manifest)

    def add(self, step: dict[str, np.ndarray]) -> None:
        """Adds a step: arrays as in `axes.TRACE_AXES`, without the step axis; position and key axes may grow."""
        self._steps.append(step)
        if len(self._steps) >= STEPS_PER_PART or time.monotonic() - self._opened >= SECONDS_PER_PART:
            self.flush()

    def flush(self) -> None:
        """Closes the part that is being collected."""
        if not self._steps:
            return
        arrays = {name: _stack(name, [step[name] for step in self._steps]) for name in self._steps[0]}
        name, first = PART.format(len(self.manifest["parts"])), self.manifest["steps"]
        content = save(arrays, metadata={"first_step": str(first), "steps": str(len(self._steps))})
        write_whole(self.folder / name, content)
        self.manifest["parts"].append({"file": name, "first_step": first, "steps": len(self._steps), "sha256": checksum(content)})
        self.manifest["steps"] += len(self._steps)
        self._steps, self._opened = [], time.monotonic()

    def close(self, complete: bool, **more: Any) -> None:
        """Writes what is left and the final manifest."""
        self.flush()
        self.manifest.update(more, complete=complete)
        write_manifest(self.folder, self.manifest)


def move_trace(source: Path, target: Path) -> None:
    """Moves the files of a trace into a new folder.

    Raises:
        TraceError: they cannot be moved.
    """
    try:
        target.mkdir()
        for path in [*sorted(source.glob(PART_GLOB)), source / MANIFEST]:
            path.rename(target / path.name)
    except OSError as error:
        raise TraceError(f"{source}: its trace cannot be moved to {target} ({error.strerror or error})") from error


def _stack(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Stacks steps whose last axis grew."""
    widest = max(array.shape[-1] for array in arrays) if arrays[0].ndim else 0
    if all(array.ndim == 0 or array.shape[-1] == widest for array in arrays):
        return np.ascontiguousarray(np.stack(arrays))
    return np.ascontiguousarray(np.stack([widen(name, array, widest) for array in arrays]))


def widen(name: str, array: np.ndarray, width: int) -> np.ndarray:
    """Fills the last axis up to ``width`` with what stands for "nothing" in that tensor."""
    if array.shape[-1] >= width:
        return array
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, room, constant_values=_FILL.get(name, np.nan))
