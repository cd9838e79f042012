"""A folder of statistics, to which any number of processes add prompts; they are merged in the order of their numbers.

manifest.json            the identity of the run, and how many prompts are expected
statistics.safetensors   the prompts 0 … n−1, merged in this order; n and the model that they are of in its metadata
items/000123.safetensors prompts that wait for an earlier one

A prompt is committed by an atomic rename and merged under a lock, so a run that was killed goes on.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import UNFINISHED, checksum_of, compare_checksum, compare_sealed, read_json_object, sealed
from sinkscope.runs.folder import CLAIM, difference_in_words, exclusive, first_difference, item_path, made_folder
from sinkscope.traces.format import FORMAT, MANIFEST, NAMELESS, write_manifest, write_whole

STATISTICS, ITEMS, LOCK = "statistics.safetensors", "items", ".lock"
RUN = "run"  # in the metadata of tensors: the sha256 of their run's identity
Arrays = dict[str, np.ndarray]


class StatisticsFolder:
    """The folder of the run with this ``identity``, plain values; that of another run is refused. ``merge`` returns the
    arrays of two sets of prompts together, the earlier one first; ``expected`` prompts are None if not known yet.
    """

    def __init__(
        self,
        folder: Path,
        identity: dict[str, Any],
        merge: Callable[[Arrays, Arrays], Arrays],
        expected: int | None = None,
    ) -> None:
        self.folder, self.expected, self._merge = folder, expected, merge
        self.identity = json.loads(json.dumps(identity))
        begun = self._check()  # before anything is made in a folder that may be somebody else's
        with made_folder(folder / ITEMS):
            pass
        if not begun:
            with exclusive(folder / LOCK, TraceError):
                if not self._check():
                    self._write_manifest()

    def _check(self) -> bool:
        """Return whether the same run has begun here; raise CallError where the folder holds anything else."""
        if (self.folder / MANIFEST).exists():
            other = first_difference(read_statistics_manifest(self.folder)["run"], self.identity)
            if other is not None:
                change = difference_in_words(*other, "expected {name} {new!r}, found {old!r}")
                advice = "choose another folder, or replace it: --overwrite"
                raise CallError(f"{self.folder} holds statistics of another run: {change}; {advice}")
            return True
        names = [one.name for one in self.folder.iterdir()] if self.folder.is_dir() else []
        if others := [one for one in names if one not in (ITEMS, LOCK, CLAIM) and not one.endswith(UNFINISHED)]:
            raise CallError(f"{self.folder} already holds files ({others[0]} …); choose another folder or delete it")
        return False

    def _write_manifest(self) -> None:
        about = {"format": FORMAT, "level": "statistics", "expected": self.expected, "run": self.identity}
        write_manifest(self.folder, about)

    @property
    def prompts(self) -> int:
        """How many prompts are merged."""
        return int(self._merged()[1]["prompts"])

    def done(self, index: int) -> bool:
        """Return whether a prompt is merged or waits to be."""
        return self._item(index).exists() or index < self.prompts

    def _item(self, index: int) -> Path:
        return item_path(self.folder / ITEMS, index, ".safetensors")

    def _merged(self) -> tuple[Arrays, dict[str, str]]:
        path = self.folder / STATISTICS
        return _read(path, self.identity) if path.exists() else ({}, {"prompts": "0", "texts": "{}"})

    def commit(self, index: int, arrays: Arrays, about: dict[str, Any], texts: dict[str, str]) -> bool:
        """Add a prompt with texts of its tokens and merge what can be merged; return whether this completed the folder.
        Of ``about``, keys of the manifest, those of prompt 0 are kept.
        """
        plain = {name: json.dumps(one, ensure_ascii=False) for name, one in (("about", about), ("texts", texts))}
        metadata = {"prompts": "1", **plain, RUN: checksum_of(self.identity)}
        write_whole(self._item(index), sealed(save(arrays, metadata)))
        return self.fold()

    def fold(self) -> bool:
        """Merge the prompts that follow those merged so far; return whether this call completed the folder."""
        with exclusive(self.folder / LOCK, TraceError):
            merged, metadata = self._merged()
            first = count = int(metadata["prompts"])
            texts = json.loads(metadata["texts"])
            while self._item(count).exists():
                arrays, own = _read(self._item(count), self.identity)
                merged = self._merge(merged, arrays) if count else arrays
                texts.update(json.loads(own["texts"]))
                metadata["about"] = own["about"] if not count else metadata["about"]
                count += 1
            if count > first:
                text = json.dumps(dict(sorted(texts.items())), ensure_ascii=False, separators=(",", ":"))
                metadata |= {"prompts": str(count), "texts": text, RUN: checksum_of(self.identity)}
                write_whole(self.folder / STATISTICS, sealed(save(merged, metadata)))
            for item in (self.folder / ITEMS).glob("*.safetensors"):
                if int(item.stem) < count:  # also one that a kill left after it was merged
                    item.unlink()
            if count == self.expected:
                shutil.rmtree(self.folder / ITEMS, ignore_errors=True)
            return first < count == self.expected

    def close(self) -> None:
        """Complete the folder: no more prompts will come."""
        self.expected = self.prompts
        self._write_manifest()
        self.fold()
        (self.folder / LOCK).unlink(missing_ok=True)


def is_statistics(path: str | Path) -> bool:
    """Return whether a folder holds statistics rather than a trace."""
    try:
        return read_json_object(Path(path) / MANIFEST, TraceError).get("level") == "statistics"
    except TraceError:
        return False


def read_statistics_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder of statistics; raise TraceError for a missing or damaged one."""
    path = folder / MANIFEST
    manifest = read_json_object(path, TraceError, "expected the manifest of a folder of statistics")
    if (manifest.get("format"), manifest.get("level")) != (FORMAT, "statistics"):
        raise TraceError(f"{path}: expected statistics of format {FORMAT}; record them again")
    compare_checksum(manifest, path, TraceError)
    return manifest


def read_statistics(folder: str | Path) -> tuple[dict[str, Any], Arrays, dict[int, str]]:
    """Return the manifest (with ``prompts``, ``complete``, and the keys of the first prompt's), the merged arrays and
    the texts of tokens; raise TraceError where the folder is missing or damaged, or holds no complete prompt.
    """
    folder = Path(folder)
    manifest = read_statistics_manifest(folder)
    path = folder / STATISTICS
    if not path.exists():
        raise TraceError(f"{folder} holds no complete prompt yet; run the command that began it again")
    arrays, metadata = _read(path, manifest["run"])
    count, about = int(metadata["prompts"]), json.loads(metadata["about"])
    found = {**manifest, "complete": count == manifest["expected"], "prompts": count, **about}
    found["model"] = {"name": NAMELESS, **found.get("model", {})}
    return found, arrays, {int(token): text for token, text in json.loads(metadata["texts"]).items()}


def _read(path: Path, identity: dict[str, Any]) -> tuple[Arrays, dict[str, str]]:
    """Return the arrays and the metadata of a file of statistics, which must be of the run with this identity."""
    compare_sealed(path, TraceError)
    with safe_open(path, framework="np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        metadata = file.metadata() or {}
    if metadata.get(RUN) != checksum_of(identity):
        raise TraceError(f"{path}: expected the run that its manifest names, found another; put its own file back")
    return arrays, metadata
