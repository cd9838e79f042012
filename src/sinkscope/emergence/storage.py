"""The folder of a watched training: what was measured at each moment, so that a run that was killed goes on.

manifest.json               what was measured on which canvases; another run is refused
update-000100.safetensors   the arrays of one `Moment`, sealed by a checksum
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.checksums import compare_checksum, compare_sealed, sealed, with_checksum
from sinkscope.documents import check_fields, check_regular, read_json_object
from sinkscope.emergence.history import ARRAYS, Emergence, Moment
from sinkscope.emergence.watch_schema import WatchFile
from sinkscope.errors import CallError, TrainingError
from sinkscope.locks import claimed_folder, names_in
from sinkscope.work_items import differences, write_whole

MANIFEST = "manifest.json"
ADVICE = "make room or choose another folder; the same command goes on"
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")


class Store:
    """The folder of a run while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, update: int) -> bool:
        """Return whether a moment has been measured."""
        return self._path(update).exists()

    def write(self, update: int, moment: Moment) -> None:
        """Keep a moment."""
        from safetensors.numpy import save

        arrays = {name: np.asarray(getattr(moment, name)) for name in ARRAYS if getattr(moment, name) is not None}
        write_whole(self._path(update), sealed(save(arrays, {"update": str(update)})), TrainingError, ADVICE)

    def _path(self, update: int) -> Path:
        return self._folder / f"update-{update:06d}.safetensors"


@contextmanager
def open_watch(folder: Path, values: Mapping[str, Any]) -> Iterator[Store]:
    """Open or make the folder of a run while the body runs.

    Args:
        values: what must be the same for a run to go on, as plain values.

    Raises:
        CallError: it holds another run or something else, or another process writes into it.
        TrainingError: it cannot be written.
    """
    with claimed_folder(folder, TrainingError):
        names = [name for name in names_in(folder) if not name.endswith(".writing")]
        if names and MANIFEST not in names:
            raise CallError(f"{folder} holds something else ({min(names)} …); choose a new or empty folder")
        if not names:
            write_whole(folder / MANIFEST, json.dumps(with_checksum(values), indent=1).encode() + b"\n", TrainingError, ADVICE)
        theirs = _read_manifest(folder)
        for name, old, new in differences(theirs, values):
            raise CallError(f"{folder} holds another run: its {name} is {old!r}, now it is {new!r}; choose another folder")
        yield Store(folder)


def open_emergence(folder: str | Path) -> Emergence:
    """Read the folder of a watched training.

    Raises:
        CallError: there is none, or it has no moment yet.
        TrainingError: it was damaged or changed.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    found = sorted((int(match[1]), folder / name) for name in names_in(folder) if (match := _NAME.fullmatch(name)))
    if not found:
        raise CallError(f"{folder}: expected at least one moment (update-….safetensors), found none; the run has not measured yet")
    return Emergence(manifest, tuple(update for update, _ in found), tuple(_read_moment(path, manifest) for _, path in found))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    found = read_json_object(path, CallError, "expected the folder of a watched training, with its manifest.json")
    check_fields(found, WatchFile, str(path), TrainingError)
    compare_checksum(found, path, TrainingError)
    return {name: value for name, value in found.items() if name != "checksum"}


def _read_moment(path: Path, manifest: Mapping[str, Any]) -> Moment:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    check_regular(path, TrainingError, most=1 << 30)
    compare_sealed(path, TrainingError)
    arrays: dict[str, np.ndarray] = {}
    with contextlib.suppress(SafetensorError, ValueError):
        arrays = load_file(path)
    canvases, by_head = (manifest["canvases"],), (manifest["layers"], manifest["heads"])
    for name in ARRAYS:
        expected = canvases if name.startswith("loss") else by_head if name == "role" else canvases + by_head
        if name not in arrays and name == "role":
            continue
        if name not in arrays or arrays[name].shape != expected:
            there = tuple(arrays[name].shape) if name in arrays else "nothing"
            raise TrainingError(f"{path}: {name}: expected an array {expected}, found {there}; delete the file and measure again")
    return Moment(**{name: arrays[name] for name in ARRAYS if name in arrays})
