"""The folder of a watched training: the canvases and the measurement of each moment, so that a killed run goes on.

manifest.json               what was measured on which canvases; another run is refused
update-000100.safetensors   the arrays of one `Moment`, sealed by a checksum
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.emergence.history import ARRAYS, Emergence, Moment
from sinkscope.errors import CallError, TrainingError
from sinkscope.runs.files import compare_checksum, compare_sealed, compare_update, read_json_object, sealed, write_whole
from sinkscope.runs.folder import names_in, run_folder

MANIFEST, WEIGHTS, IN_MEMORY, ROLES = "manifest.json", "weights_sha256", "weights_in_memory", "roles"
FORMAT = "sinkscope emergence 1"
DAMAGED = "delete the file and measure again"
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")
_WRITTEN = re.compile(rf"({re.escape(MANIFEST)}|{_NAME.pattern})(\.\d+\.writing)?")


class Store:
    """The folder of a run while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def about(self, update: int, weights: Collection[str] = ()) -> dict[str, str] | None:
        """Return what is known of a moment, None where it has not been measured.

        Args:
            weights: checksums of the files of weights that it must be of.

        Raises:
            CallError: it is the moment of other weights.
            TrainingError: the file was damaged.
        """
        if not (path := self._path(update)).exists():
            return None
        found = compare_sealed(path, TrainingError, DAMAGED)
        if weights and found.get(WEIGHTS) not in weights:
            raise CallError(f"{path}: expected the moment of these weights, found others; choose another folder")
        return found

    def write(self, update: int, moment: Moment, about: Mapping[str, str | None]) -> None:
        """Keep a moment with what is known of the weights."""
        from safetensors.numpy import save

        arrays = {name: np.asarray(one) for name in ARRAYS if (one := getattr(moment, name)) is not None}
        known = {"update": str(update), **about, ROLES: str("role" in arrays)}
        content = save(arrays, {name: value for name, value in known.items() if value is not None})
        write_whole(self._path(update), sealed(content), TrainingError, "make room or choose another folder")

    def _path(self, update: int) -> Path:
        return self._folder / f"update-{update:06d}.safetensors"


@contextmanager
def open_watch(folder: Path, values: Mapping[str, Any]) -> Iterator[Store]:
    """Open or make the folder of a run of these values while the body runs; errors as those of `run_folder`."""
    with run_folder(folder, MANIFEST, values, TrainingError, "another run"):
        yield Store(folder)


class _Checked(Exception):
    """Ends a check, so that the folder that was made for it is removed."""


def check_watch(folder: Path, values: Mapping[str, Any]) -> None:
    """Raise an error where a run cannot be written into a folder; nothing is left there. See `open_watch`."""
    with contextlib.suppress(_Checked), open_watch(folder, values):
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


def measured_updates(folder: Path) -> dict[int, Path]:
    """Return the files of moments by their updates, in order; none where there is no folder."""
    names = names_in(folder) if folder.is_dir() else []
    return dict(sorted((int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))))


def open_emergence(folder: str | Path) -> Emergence:
    """Read the folder of a watched training.

    Raises:
        CallError: there is none, or it has no moment yet.
        TrainingError: it was damaged or changed.
    """
    from safetensors.numpy import load_file

    folder = Path(folder)
    path, expected = folder / MANIFEST, f"expected the folder of a watched training, with its {MANIFEST}"
    manifest = read_json_object(path, CallError, expected)
    if manifest.get("format") != FORMAT:
        raise TrainingError(f"{path}: {expected}, found something else")
    compare_checksum(manifest, path, TrainingError)
    found, moments = measured_updates(folder), []
    if not found:
        raise CallError(f"{folder}: expected a moment (update-….safetensors), found none; the run has not measured yet")
    canvases, by_head = (manifest["canvases"],), (manifest["layers"], manifest["heads"])
    shapes = {name: canvases if name.startswith("loss") else canvases + by_head for name in ARRAYS} | {"role": by_head}
    for update, path in found.items():
        compare_sealed(path, TrainingError, DAMAGED)
        compare_update(path, update, TrainingError)
        arrays = load_file(path)
        wrong = [name for name in ARRAYS if name in arrays and arrays[name].shape != shapes[name]]
        if missing := [*wrong, *(set(ARRAYS) - arrays.keys() - {"role"})]:
            raise TrainingError(f"{path}: {missing[0]}: expected an array {shapes[missing[0]]}, found none; {DAMAGED}")
        moments.append(Moment(**{name: arrays[name] for name in ARRAYS if name in arrays}))
    return Emergence({name: value for name, value in manifest.items() if name != "checksum"}, (*found,), (*moments,))
