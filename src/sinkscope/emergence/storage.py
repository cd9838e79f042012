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

from sinkscope.checksums import compare_checksum, compare_sealed, compare_update, sealed, with_checksum
from sinkscope.documents import check_fields, check_regular, read_json_object
from sinkscope.emergence.history import ARRAYS, Emergence, Moment
from sinkscope.emergence.watch_schema import WatchFile
from sinkscope.errors import CallError, TrainingError
from sinkscope.locks import claimed_folder, names_in
from sinkscope.work_items import difference_in_words, differences, write_whole

MANIFEST, WEIGHTS, IN_MEMORY = "manifest.json", "weights_sha256", "weights_in_memory"
ADVICE = "make room or choose another folder; the same command goes on"
DAMAGED = "delete the file and measure again"
LARGEST = 1 << 30
"""Bytes of the file of a moment."""
_ANY, _SHARE, _PLACE = ("f", 0, float(np.finfo(np.float32).max)), ("f", 0, 1.001), ("i", 0, 1 << 24)
BOUNDS = {
    **dict.fromkeys(("loss", "loss_without_top", "loss_without_rowmass", "value_ratio", "output_ratio"), _ANY),
    **dict.fromkeys(("share", "first_share", "masks_share"), _SHARE),
    **dict.fromkeys(("place", "sinks"), _PLACE),
    "role": ("i", -1, 16),
}
"""Of each array of a moment: the kind of its numbers, the least one and the greatest one. A ratio may also be NaN."""
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")

_WRITTEN = re.compile(rf"({re.escape(MANIFEST)}|{_NAME.pattern})(\.\d+\.writing)?")


class Store:
    """The folder of a run while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, update: int, weights: Collection[str] = ()) -> bool:
        """Return whether a moment has been measured; ``weights`` are checksums of files of the weights that it must be of.

        Raises:
            CallError: it is the moment of other weights.
            TrainingError: the file was damaged.
        """
        path = self._path(update)
        if not path.exists():
            return False
        theirs = _metadata(path).get(WEIGHTS)
        if weights and theirs is not None and theirs not in weights:
            raise CallError(
                f"{path}: expected the moment of these weights, found that of others; choose another folder"
            )
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
        """Keep a moment, with the checksum of the weights that were measured, and their hash where they are only in memory."""
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
    """Raise an error where a run cannot be written into a folder; nothing is left there.

    Raises:
        CallError: it holds another run or something else, or another process writes into it.
        TrainingError: it cannot be written.
    """
    with contextlib.suppress(_Checked), claimed_folder(folder, TrainingError):
        _compare(folder, values)
        raise _Checked


def check_collection(folder: Path, file: str) -> None:
    """Raise an error for a folder that holds anything but folders of runs and a figure of them.

    Args:
        file: name of the figure's files, without the ending.

    Raises:
        CallError: it holds something else.
    """
    ours = re.compile(rf"{re.escape(file)}\.(png|pdf|csv)(\.\d+\.writing)?")
    for name in names_in(folder):
        if not (
            ours.fullmatch(name)
            or ((folder / name).is_dir() and all(_WRITTEN.fullmatch(one) for one in names_in(folder / name)))
        ):
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
            write_whole(
                folder / MANIFEST, json.dumps(with_checksum(values), indent=1).encode() + b"\n", TrainingError, ADVICE
            )
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
        raise CallError(
            f"{folder}: expected at least one moment (update-….safetensors), found none; the run has not measured yet"
        )
    return Emergence(
        manifest, tuple(found), tuple(_read_moment(path, update, manifest) for update, path in found.items())
    )


def measured_updates(folder: Path) -> set[int]:
    """Return the updates whose moments are in a folder; none where there is no folder."""
    return {*_moments_in(folder)} if folder.is_dir() else set()


def _moments_in(folder: Path) -> dict[int, Path]:
    """Return the file of each moment by its update, in order."""
    return dict(sorted((int(match[1]), folder / name) for name in names_in(folder) if (match := _NAME.fullmatch(name))))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    found = read_json_object(path, CallError, "expected the folder of a watched training, with its manifest.json")
    check_fields(found, WatchFile, str(path), TrainingError)
    compare_checksum(found, path, TrainingError)
    return {name: value for name, value in found.items() if name != "checksum"}


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of the file of a moment, after its checksum was compared."""
    from safetensors import SafetensorError, safe_open

    check_regular(path, TrainingError, most=LARGEST)
    compare_sealed(path, TrainingError, DAMAGED)
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except SafetensorError as error:
        raise TrainingError(f"{path}: expected a moment, found a file that is damaged; {DAMAGED}") from error


def _read_moment(path: Path, update: int, manifest: Mapping[str, Any]) -> Moment:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    check_regular(path, TrainingError, most=LARGEST)
    compare_sealed(path, TrainingError, DAMAGED)
    compare_update(path, update, TrainingError)
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
            raise TrainingError(f"{path}: {name}: expected an array {expected}, found {there}; {DAMAGED}")
        _check_values(path, name, arrays[name])
    return Moment(**{name: arrays[name] for name in ARRAYS if name in arrays})


def _check_values(path: Path, name: str, array: np.ndarray) -> None:
    """Raise TrainingError for values that an array of a moment cannot have."""
    kind, least, most = BOUNDS[name]
    with np.errstate(invalid="ignore"):
        fits = (
            (array >= least) & (array <= most) | np.isnan(array) & name.endswith("ratio")
            if array.dtype.kind == kind
            else False
        )
    if not np.all(fits):
        raise TrainingError(f"{path}: {name}: expected numbers from {least:g} to {most:g}, found others; {DAMAGED}")
