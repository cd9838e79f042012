"""Writes one trace in parts; a part is closed after 16 steps, 2 seconds or 64 MiB, whichever comes first."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.argument_types import check_argument
from sinkscope.axes import HEAD, KV_HEAD, LAYER, TRACE_AXES, TRACE_UNITS
from sinkscope.checksums import checksum_of
from sinkscope.documents import check_fields, exists, files_in
from sinkscope.errors import CallError, TraceError, first_line
from sinkscope.locks import in_the_way, names_in
from sinkscope.traces.format import (
    ASIDE,
    BUNDLE,
    DRIFT,
    DTYPES,
    FORMAT,
    MANIFEST,
    MOVING,
    PART,
    PART_GLOB,
    RECORDED,
    attends_elsewhere,
    only_left_behind,
    write_manifest,
)
from sinkscope.traces.own_arrays import checked_step
from sinkscope.traces.part_checks import expected_type
from sinkscope.traces.part_files import write_part
from sinkscope.work_items import read_object

STEPS_PER_PART = 16
SECONDS_PER_PART = 2.0
BYTES_PER_PART = 64 << 20

Step = dict[str, np.ndarray]


def claim_folder(folder: str | Path, overwrite: bool | None = False) -> None:
    """Make an empty folder for a trace.

    Args:
        overwrite: deletes the traces or statistics that it holds; nothing is deleted where it holds anything else. None where the caller
            has no such option.

    Raises:
        CallError: it holds something already.
        TraceError: it cannot be made, or what it holds cannot be deleted.
    """
    if _holds_trace(Path(folder), overwrite):
        _delete(Path(folder))


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
    room = Room()
    if replaces:
        _put_aside(folder)
    try:
        yield room
    finally:
        if room.recorded():
            shutil.rmtree(folder / ASIDE, ignore_errors=True)
        else:
            if _not_recorded(folder) is None:
                _delete(folder, keep=ASIDE)
            if replaces:
                _bring_back(folder)


def _put_aside(folder: Path) -> None:
    """Move the traces of a folder aside; those that a killed run has put aside stay there where it recorded nothing in their place."""
    if (folder / ASIDE).exists() and not (folder / MOVING).exists():
        if not _has_recorded(folder):
            _delete(folder, keep=ASIDE)
            return
        shutil.rmtree(folder / ASIDE, ignore_errors=True)
    with _moving(folder):
        (folder / MOVING).mkdir(exist_ok=True)
        for name in names_in(folder):
            if name != MOVING:
                (folder / name).rename(folder / MOVING / name)
        (folder / MOVING).rename(folder / ASIDE)


def _bring_back(folder: Path) -> None:
    """Move the traces that were put aside back into their folder."""
    with _moving(folder):
        (folder / ASIDE).rename(folder / MOVING)
        for name in names_in(folder / MOVING):
            (folder / MOVING / name).rename(folder / name)
        (folder / MOVING).rmdir()


@contextmanager
def _moving(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"{folder}: its trace cannot be moved to {ASIDE} in it, or back ({error.strerror or error}); choose another folder"
        ) from error


def _has_recorded(folder: Path) -> bool:
    """Return whether a folder holds a whole step of a trace, a prompt of statistics or a drift; not of what was put aside in it."""
    places = [folder, *(one for one in files_in(folder, "[0-9]*", TraceError) if one.is_dir())]
    found = [path for place in places for path in files_in(place, PART_GLOB, TraceError)]
    found += [folder / name for name in (DRIFT, "statistics.safetensors") if (folder / name).exists()]
    return bool(found or files_in(folder / "items", "*.safetensors", TraceError))


def _delete(folder: Path, keep: str = "") -> None:
    try:
        for path in (folder / name for name in names_in(folder) if name != keep):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except OSError as error:
        raise TraceError(
            f"{error.filename or folder} cannot be deleted ({error.strerror}); choose another folder"
        ) from error


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
        if not folder.exists():
            raise CallError(
                f"{folder}: expected a folder for the trace, found {in_the_way(folder)}; choose another name"
            ) from error
        raise CallError(f"{folder} is a file; a trace is a folder, choose another name") from error
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    if found is None:
        return False
    if only_left_behind(folder):
        _delete(folder)
        return False
    holding = [
        one for one in (folder, folder / ASIDE, folder / MOVING) if one.is_dir()
    ]  # a killed run may have left the last two
    inner = [one / MANIFEST for within in holding for one in files_in(within, "*", TraceError) if one.is_dir()]
    recorded = any(_is_recording(path) for path in (folder / MANIFEST, *inner))
    if not recorded and not any(_is_drift(folder / within / DRIFT) for within in ("", ASIDE, MOVING)):
        raise CallError(f"{folder} already holds files ({found} …); choose another folder or delete this one")
    if not overwrite:
        counted = any((folder / name).exists() for name in ("statistics.safetensors", "items"))
        held = "files of a recording of drift" if not recorded else "statistics" if counted else "a trace"
        advice = "choose another folder" + (
            ", or replace it: overwrite=True, --overwrite" if overwrite is not None else ""
        )
        raise CallError(f"{folder} already holds {held}; {advice}")
    if foreign := _not_recorded(folder):
        raise CallError(
            f"{folder} holds {foreign.name} beside its trace, and overwrite deletes traces only; choose another folder"
        )
    return True


def _is_recording(path: Path) -> bool:
    """Return whether a manifest is that of a trace or of statistics; a damaged one may be."""
    found: dict[str, Any] | None = read_object(path) if path.exists() else {"format": None}
    return found is None or found.get("format", FORMAT) == FORMAT


def _is_drift(path: Path) -> bool:
    """Return whether a file is that of ``--keep drift``; a damaged one may be."""
    found: dict[str, Any] | None = read_object(path) if path.exists() else {}
    return found is None or {"format", "lags", "sampler"} <= found.keys()


_ITEM = re.compile(r"\d+\.safetensors(\.\d+\.writing)?")


def _not_recorded(folder: Path, deep: bool = True) -> Path | None:
    """Return a file or folder that no recording wrote, None where there is none; ``deep`` allows numbered traces."""
    for path in (folder / name for name in names_in(folder)):
        if path.is_symlink() or not path.is_dir():
            fits = RECORDED.fullmatch(path.name) is not None
        elif path.name in (ASIDE, MOVING):
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
        trusted: whether steps are neither checked nor copied, because they come from a recorder, which writes into none of them again.

    Attributes:
        held: bytes of the steps that wait for their part to be closed.

    Raises:
        CallError: the folder holds a trace or is none, or the manifest does not say of which model.
    """

    def __init__(
        self,
        folder: str | Path,
        manifest: dict[str, Any],
        reduce: Callable[[Step], Step] | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self.folder, self._reduce, self._trusted, self._closed = Path(folder), reduce, trusted, False
        self._sizes = {axis: len(one) if axis == LAYER else one for axis, one in _told(manifest).items()}
        self._names: tuple[str, ...] = ()
        self._generation = ""
        self.manifest = {
            "format": FORMAT,
            "complete": False,
            **manifest,
            "steps": 0,
            "axes": {name: list(axes) for name, axes in TRACE_AXES.items()},
            "units": TRACE_UNITS,
            "parts": [],
        }
        if not trusted:
            _check_free(self.folder)
            if not self.folder.is_dir():
                raise CallError(
                    f"{self.folder}: expected an empty folder, found {'a file' if exists(self.folder) else 'none'}; make it first"
                )
            from sinkscope.traces.manifest_schema import TraceManifest

            check_fields(self.manifest, TraceManifest, "manifest", CallError)
            _check_plain(self.manifest)
        self.held = 0
        self._steps: list[Step] = []
        self._opened = time.monotonic()
        write_manifest(self.folder, self.manifest)

    def add(self, step: Step) -> None:
        """Add a step: arrays as in `axes.TRACE_AXES`, without the step axis; position and key axes may grow.

        They are copied: the caller may fill them anew.

        Raises:
            CallError: arrays of other names, axes, sizes or types than a trace has or the first step had, values that cannot be, or
                the trace is closed.
        """
        if not self._trusted:
            step = self._checked(step)
        step = step if self._reduce is None else self._reduce(step)
        self._steps.append(step)
        self.held += sum(array.nbytes for array in step.values())
        late = time.monotonic() - self._opened >= SECONDS_PER_PART
        if late or len(self._steps) >= STEPS_PER_PART or self.held >= BYTES_PER_PART:
            self.flush()

    def _checked(self, step: Step) -> Step:
        """Return a copy of a step of the caller's.

        Raises:
            CallError: see `add`.
        """
        if self._closed:
            raise CallError(
                f"{self.folder}: expected no step behind close(), found one; write it into a trace of its own"
            )
        names = tuple(sorted(step))
        if names != self._names and (self._names or not names or not set(names) <= set(TRACE_AXES)):
            expected = (
                f"the tensors of the first, {', '.join(self._names)}"
                if self._names
                else f"tensors of {', '.join(TRACE_AXES)}"
            )
            raise CallError(f"step: expected {expected}; found {', '.join(names) or 'none'}")
        found = checked_step("step: ", step, self._sizes, within=not attends_elsewhere(self.manifest))
        for name, array in found.items():
            if array.dtype != (dtype := DTYPES[expected_type(name)]):
                raise CallError(f"step: {name}: expected {dtype}, found {array.dtype}; pass .astype(np.{dtype})")
        mask = self.manifest.get("mask_id")
        if (
            mask is not None
            and {"tokens", "masked"} <= found.keys()
            and ((found["masked"] != 0) != (found["tokens"] == mask)).any()
        ):
            raise CallError(
                f"step: masked: expected 1 where tokens has the mask token {mask} of the manifest, and 0 elsewhere, found others"
            )
        self._names = names
        return {name: np.array(array) for name, array in found.items()}

    def flush(self) -> None:
        """Write the steps that wait, as one part, and list it, so that it is checked also where a kill ends the generation."""
        if self._steps:
            self._write_part()
            write_manifest(self.folder, self.manifest)

    def _write_part(self) -> None:
        name, first, count = PART.format(len(self.manifest["parts"])), self.manifest["steps"], len(self._steps)
        if not self._generation:  # the same in every part, so that none of another generation is taken for one of this
            tokens = self._steps[0].get("tokens", np.zeros(0, np.int32))
            made = {key: value for key, value in self.manifest.items() if key != "command"}
            self._generation = checksum_of({**made, "tokens": tokens.tolist()})
        about = {"first_step": str(first), "steps": str(count), "generation": self._generation}
        checksum = write_part(self.folder / name, self._steps, about)
        self.manifest["parts"].append({"file": name, "first_step": first, "steps": count, "sha256": checksum})
        self.manifest["steps"] += count
        self._steps, self.held, self._opened = [], 0, time.monotonic()

    def describe(self, **more: Any) -> None:
        """Set keys of the manifest; they are written with the next part."""
        self.manifest.update(more)

    def close(self, complete: bool, **more: Any) -> None:
        """Write the remaining steps and the final manifest.

        Raises:
            CallError: the trace is closed, or ``more`` is what no manifest may say.
        """
        if not self._trusted:
            self._check_end(complete, more)
        if self._steps:
            self._write_part()
        self._closed = True
        self.manifest.update(more, complete=complete)
        write_manifest(self.folder, self.manifest)

    def _check_end(self, complete: bool, more: dict[str, Any]) -> None:
        """Raise CallError for an end that would leave a trace which cannot be read."""
        from sinkscope.traces.manifest_schema import TraceManifest

        check_argument("complete", complete, bool)
        if self._closed:
            raise CallError(f"{self.folder}: expected a trace that is open, found one that was closed before")
        if ours := sorted({"format", "steps", "axes", "units", "parts"} & more.keys()):
            raise CallError(
                f"{ours[0]}: expected other fields of the manifest, as the writer counts these itself; leave it out"
            )
        ended = {**self.manifest, **more, "complete": complete}
        check_fields(ended, TraceManifest, "manifest", CallError)
        _check_plain(ended)


def _check_plain(manifest: dict[str, Any]) -> None:
    """Raise CallError for a manifest that cannot be written as JSON."""
    try:
        json.dumps(manifest, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # objects, NaN, lone surrogates
        raise CallError(
            f"manifest: expected values of JSON in UTF-8, found others ({first_line(error)}); leave them out"
        ) from error


def _check_free(folder: Path) -> None:
    """Raise CallError for a folder that holds a trace, which a second one would destroy."""
    if exists(folder / MANIFEST) or files_in(folder, PART_GLOB, TraceError):
        raise CallError(
            f"{folder} already holds a trace; choose another folder, or empty this one: claim_folder(folder, overwrite=True)"
        )


def _told(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a manifest says of the axes of its trace."""
    return {
        axis: one
        for axis, name in ((LAYER, "layers"), (HEAD, "heads"), (KV_HEAD, "kv_heads"))
        if (one := manifest.get(name))
    }


def move_trace(source: str | Path, target: str | Path) -> None:
    """Move the files of a trace into a new folder.

    Raises:
        CallError: something is at the target already, or the trace is a bundle, whose other files would stay behind.
        TraceError: they cannot be moved.
    """
    source, target = Path(source), Path(target)
    if exists(source / BUNDLE):
        raise CallError(f"{source} is a bundle, of which a trace is a part; move the whole folder")
    if exists(target):
        raise CallError(
            f"{target}: expected a new folder for the trace of {source}, found one that is there; choose another name"
        )
    try:
        target.mkdir()
        for path in [*files_in(source, PART_GLOB, TraceError), source / MANIFEST]:
            path.rename(target / path.name)
    except OSError as error:
        raise TraceError(f"{source}: its trace cannot be moved to {target} ({error.strerror or error})") from error
