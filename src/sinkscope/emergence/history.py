"""The folder of a watched training, which a killed run goes on in: arrays of numbers, without torch.

manifest.json               what was measured on which canvases; another run is refused
update-000100.safetensors   the arrays of one `Moment`, sealed by a checksum
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError, TrainingError
from sinkscope.runs.files import compare_checksum, compare_sealed, read_json_object, sealed, write_whole
from sinkscope.runs.folder import names_in

SHARE = 0.1  # of a head's attention, from which its top key counts as a sink that has been born
MANIFEST, WEIGHTS, IN_MEMORY, ROLES = "manifest.json", "weights_sha256", "weights_in_memory", "roles"
FORMAT = "sinkscope emergence 1"
DAMAGED = "delete the file and measure again"
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")


@dataclass(frozen=True, eq=False)
class Moment:
    """One moment. The *top key* of a head is the key with the largest column on a canvas.

    Losses of the readers are in nats; without the top key of all heads, or random keys of as much attention. Shares are
    of the readers' attention; norms of the top key's value, also behind the output projection, are over the median.
    ``sinks``: by Eq. 3 at ε = 3; ``role``: index in `ROLES`, −1 without a lasting sink; None where not measured.
    """

    loss: Float[np.ndarray, " canvas"]
    loss_without_top: Float[np.ndarray, " canvas"]
    loss_without_rowmass: Float[np.ndarray, " canvas"]
    place: Int[np.ndarray, "canvas layer head"]
    share: Float[np.ndarray, "canvas layer head"]
    first_share: Float[np.ndarray, "canvas layer head"]
    masks_share: Float[np.ndarray, "canvas layer head"]
    value_ratio: Float[np.ndarray, "canvas layer head"]
    output_ratio: Float[np.ndarray, "canvas layer head"]
    sinks: Int[np.ndarray, "canvas layer head"]
    role: Int[np.ndarray, "layer head"] | None = None


@dataclass(frozen=True)
class Emergence:
    """The moments of one training by rising updates; ``manifest``: name, causal, layers, heads, canvases."""

    manifest: Mapping[str, Any]
    updates: tuple[int, ...]
    moments: tuple[Moment, ...]

    @property
    def name(self) -> str:
        return self.manifest["name"]

    def stacked(self, name: str) -> np.ndarray:
        """Return one array of all moments, [moment, …]."""
        return np.stack([getattr(moment, name) for moment in self.moments])

    @property
    def shares(self) -> Float[np.ndarray, "moment layer head"]:
        """The share of the readers' attention that the top key takes, mean over canvases."""
        return self.stacked("share").mean(1)

    @property
    def ratios(self) -> Float[np.ndarray, "moment layer head"]:
        """The value norm of the top key over the median of its canvas; the median over canvases."""
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # NaN where all norms are 0
            return np.nanmedian(self.stacked("value_ratio"), axis=1)

    @property
    def stayed(self) -> Float[np.ndarray, "moment layer head"]:
        """The share of canvases on which the top key stands where it stood a moment before; NaN at first."""
        places = self.stacked("place")
        same = (places[1:] == places[:-1]).mean(1)
        return np.concatenate([np.full((1, *same.shape[1:]), np.nan), same])

    def born(self, share: float = SHARE) -> Int[np.ndarray, "layer head"]:
        """Return the update from which the share of each head's top key stays at or above ``share``; −1 without one."""
        lasting = np.logical_and.accumulate((self.shares >= share)[::-1])[::-1]
        return np.where(lasting.any(0), np.array(self.updates)[lasting.argmax(0)], -1)


def write_moment(path: Path, update: int, moment: Moment, about: Mapping[str, str | None]) -> None:
    """Write a moment with the known checksums of its weights."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(one) for name, one in vars(moment).items() if one is not None}
    known = {"update": str(update), **about, ROLES: str("role" in arrays)}
    content = save(arrays, {name: value for name, value in known.items() if value is not None})
    write_whole(path, sealed(content), TrainingError, "make room or choose another folder")


def check_collection(folder: Path, file: str) -> None:
    """Raise CallError for a folder that holds anything but folders of runs and the figure ``file`` of them."""
    in_run = re.compile(rf"({re.escape(MANIFEST)}|{_NAME.pattern})(\.\d+\.writing)?")
    figure = re.compile(rf"{re.escape(file)}\.(png|pdf|csv)(\.\d+\.writing)?")
    for name in names_in(folder):
        is_run = (folder / name).is_dir() and all(in_run.fullmatch(one) for one in names_in(folder / name))
        if not (is_run or figure.fullmatch(name)):
            raise CallError(f"{folder} holds files of something else ({name} …); choose another folder or an empty one")


def measured_updates(folder: Path) -> dict[int, Path]:
    """Return the files of moments by their updates, in order."""
    names = names_in(folder) if folder.is_dir() else []
    return dict(sorted((int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))))


def open_emergence(folder: str | Path) -> Emergence:
    """Read the folder of a watched training; CallError without a moment, TrainingError where it was changed."""
    from safetensors.numpy import load_file

    folder = Path(folder)
    path, expected = folder / MANIFEST, f"expected the folder of a watched training, with its {MANIFEST}"
    manifest = read_json_object(path, CallError, expected)
    if manifest.get("format") != FORMAT:
        raise TrainingError(f"{path}: {expected}, found something else")
    compare_checksum(manifest, path, TrainingError)
    found = measured_updates(folder)
    for update, path in found.items():
        compare_sealed(path, TrainingError, DAMAGED, update)
    about = {name: value for name, value in manifest.items() if name != "checksum"}
    return Emergence(about, (*found,), tuple(Moment(**load_file(path)) for path in found.values()))
