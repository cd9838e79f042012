"""The folder of a watched training: what was measured at each moment, so that a run that was killed goes on.

manifest.json               what was measured on which canvases; another run is refused
update-000100.safetensors   the arrays of one `Moment`, sealed by a checksum
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.emergence.history import ARRAYS, Emergence, Moment
from sinkscope.errors import CallError, TrainingError
from sinkscope.runs.files import (
    compare_checksum,
    compare_sealed,
    compare_update,
    read_json_object,
    sealed,
    with_checksum,
    write_whole,
)
from sinkscope.runs.folder import claimed_folder, difference_in_words, differences, names_in

MANIFEST, WEIGHTS, IN_MEMORY = "manifest.json", "weights_sha256", "weights_in_memory"
FORMAT = "sinkscope emergence 1"
ADVICE = "make room or choose another folder; the same command goes on"
DAMAGED = "delete the file and measure again"
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")
_WRITTEN = re.compile(rf"({re.escape(MANIFEST)}|{_NAME.pattern})(\.\d+\.writing)?")


class Store:
    """The folder of a run while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, update: int, weights: Collection[str] = ()) -> bool:
        """Return whether a moment has been measured; ``weights`` are checksums of files of the weights that it must be
        of.

        Raises:
            CallError: it is the moment of other weights.
            TrainingError: the file was damaged.
        """
        path = self._path(update)
        if not path.exists():
            return False
        theirs = _metadata(path).get(WEIGHTS)
        if weights and theirs is not None and theirs not in weights:
            raise CallError(f"{path}: expected the moment of these weights, found others; choose another folder")
        return True

    def has_roles(self, update: int) -> bool:
        """Return whether the moment holds what each sink does."""
        from safetensors import safe_open

        with safe_open(self._path(update), "np") as file:
            return "role" in file.keys()  # noqa: SIM118 (it is no mapping)

    def hash_of(self, update: int) -> str | None:
        """Return the hash of the weights in memory of which a moment is; None where it was not kept."""
        return _metadata(self._path(update)).get(IN_MEMORY)

    def write(self, update: int, moment: Moment, weights: str | None = None, in_memory: str | None = None) -> None:
        """Keep a moment, with the checksum of the weights that were measured, and their hash where they are only in
        memory.
        """
        from safetensors.numpy import save

        arrays = {name: np.asarray(getattr(moment, name)) for name in ARRAYS if getattr(moment, name) is not None}
        known = {WEIGHTS: weights, IN_MEMORY: in_memory}
        about = {"update": str(update)} | {name: value for name, value in known.items() if value is not None}
        write_whole(self._path(update), sealed(save(arrays, about)), TrainingError, ADVICE)

    def _path(self, update: int) -> Path:
        return self._folder / f"update-{update:06d}.safetensors"


class _Checked(Exception):
    """Ends a check, so that the folder that was made for it is removed."""


def check_watch(folder: Path, values: Mapping[str, Any]) -> None:
    """Raise an error where a run cannot be written into a folder; nothing is left there. See `open_watch`."""
    with contextlib.suppress(_Checked), claimed_folder(folder, TrainingError):
        _compare(folder, values)
        raise _Checked


def check_collection(folder: Path, file: str) -> None:
    """Raise CallError for a folder that holds anything but folders of runs and a figure of them, ``file`` without the
    ending.
    """
    ours = re.compile(rf"{re.escape(file)}\.(png|pdf|csv)(\.\d+\.writing)?")
    for name in names_in(folder):
        is_run = (folder / name).is_dir() and all(_WRITTEN.fullmatch(one) for one in names_in(folder / name))
        if not (is_run or ours.fullmatch(name)):
            raise CallError(f"{folder} holds files of something else ({name} …); choose another folder or an empty one")


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
        new = _compare(folder, values)
        if new:
            content = json.dumps(with_checksum(values), indent=1).encode() + b"\n"
            write_whole(folder / MANIFEST, content, TrainingError, ADVICE)
        try:
            yield Store(folder)
        except BaseException:
            if new and names_in(folder) == [MANIFEST]:  # nothing was measured
                (folder / MANIFEST).unlink()
            raise


def _compare(folder: Path, values: Mapping[str, Any]) -> bool:
    """Return whether a folder is empty; one with a run must have the same values."""
    names = [name for name in names_in(folder) if not name.endswith(".writing")]
    if not names:
        return True
    if MANIFEST not in names:
        raise CallError(f"{folder} holds something else ({min(names)} …); choose a new or empty folder")
    for name, old, new in differences(_read_manifest(folder), values):
        change = difference_in_words(name, old, new, "its {name} is {old!r}, now it is {new!r}")
        raise CallError(f"{folder} holds another run: {change}; choose another folder")
    return False


def open_emergence(folder: str | Path) -> Emergence:
    """Read the folder of a watched training.

    Raises:
        CallError: there is none, or it has no moment yet.
        TrainingError: it was damaged or changed.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    found = _moments_in(folder)
    if not found:
        raise CallError(f"{folder}: expected a moment (update-….safetensors), found none; the run has not measured yet")
    moments = tuple(_read_moment(path, update, manifest) for update, path in found.items())
    return Emergence(manifest, tuple(found), moments)


def measured_updates(folder: Path) -> set[int]:
    """Return the updates whose moments are in a folder; none where there is no folder."""
    return {*_moments_in(folder)} if folder.is_dir() else set()


def _moments_in(folder: Path) -> dict[int, Path]:
    return dict(sorted((int(match[1]), folder / name) for name in names_in(folder) if (match := _NAME.fullmatch(name))))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path, expected = folder / MANIFEST, f"expected the folder of a watched training, with its {MANIFEST}"
    found = read_json_object(path, CallError, expected)
    if found.get("format") != FORMAT:
        raise TrainingError(f"{path}: {expected}, found something else")
    compare_checksum(found, path, TrainingError)
    return {name: value for name, value in found.items() if name != "checksum"}


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    compare_sealed(path, TrainingError, DAMAGED)
    with safe_open(path, "np") as file:
        return file.metadata() or {}


def _read_moment(path: Path, update: int, manifest: Mapping[str, Any]) -> Moment:
    from safetensors.numpy import load_file

    compare_sealed(path, TrainingError, DAMAGED)
    compare_update(path, update, TrainingError)
    arrays = load_file(path)
    canvases, by_head = (manifest["canvases"],), (manifest["layers"], manifest["heads"])
    for name in ARRAYS:
        expected = canvases if name.startswith("loss") else by_head if name == "role" else canvases + by_head
        there = arrays[name].shape if name in arrays else None
        if there != expected and (name, there) != ("role", None):
            raise TrainingError(f"{path}: {name}: expected an array {expected}, found {there}; {DAMAGED}")
    return Moment(**{name: arrays[name] for name in ARRAYS if name in arrays})
