"""Reads traces lazily, one step, layer or head at a time, without torch."""

import contextlib
import difflib
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sinkscope.axes import TRACE_AXES
from sinkscope.checksums import compare_checksum
from sinkscope.counts import counted
from sinkscope.documents import check_fields, describe, exists, files_in, read_json_object
from sinkscope.errors import CallError, MissingTensorError, TraceError
from sinkscope.notebook_card import card
from sinkscope.traces.format import (
    ASIDE,
    DRIFT,
    FORMAT,
    MANIFEST,
    MOVING,
    NAMELESS,
    PART_GLOB,
    RECORDED,
    attends_elsewhere,
    hidden_rules,
)
from sinkscope.traces.part_checks import check_shapes
from sinkscope.traces.part_files import Part, read_part, same_trace
from sinkscope.traces.top_columns import TOPPED, TopArray
from sinkscope.traces.trace_array import TraceArray

_ATTRIBUTES = ("manifest", "folder", "place", "steps", "layers", "heads", "causal", "complete", "parts", "tensors")
DAMAGED = "the trace is damaged"


class Trace:
    """One generation on disk. Tensors are attributes: ``trace.column_sums[step, layer, head]``; see `axes.TRACE_AXES`.

    Args:
        folder: with a manifest.json.
        verify: compares each file with its checksum and checks its values when it is first read in this process.

    Attributes:
        folder, place: the folder as it was given, by which messages name it, and its absolute path.
    """

    def __init__(self, folder: str | Path, verify: bool = True) -> None:
        self.manifest: dict[str, Any] = read_manifest(Path(folder), verify)
        self.folder, self.verifies = Path(folder), verify
        self.place = self.folder.absolute()  # the current folder may change before it is read

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        shape = f"{counted(self.steps, 'step')}, {counted(len(self.layers), 'layer')}, {counted(self.heads, 'head')}"
        return f"Trace({self.folder}, {shape}{state})"

    def _repr_html_(self) -> str:
        """Return a summary for notebooks."""
        manifest, model = self.manifest, self.manifest.get("model", {})
        kind = "autoregressive" if self.causal else "bidirectional"
        facts = {
            "model": f"{model.get('name', '?')}, {kind}, {counted(len(self.layers), 'layer')} × {counted(self.heads, 'head')}",
            "steps": f"{self.steps}{'' if self.complete else ', incomplete: the generation was cut short'}",
            "prompt": f"{counted(manifest.get('prompt_length') or 0, 'token')}: {manifest['prompt']}"
            if manifest.get("prompt")
            else None,
            "answer": manifest.get("text"),
            "hidden": ", ".join(hidden_rules(manifest)) or None,
        }
        tensors = [
            (name, " × ".join(getattr(self, name).axes), " × ".join(map(str, getattr(self, name).shape)))
            for name in self.tensors
        ]
        return card(f"Trace {self.folder}", facts, ("tensor", "axes", "shape"), tensors, most=len(TRACE_AXES))

    def __getattr__(self, name: str) -> Any:
        if name in TRACE_AXES:
            if name not in self.tensors:
                if name in TOPPED and f"top_{name}" in self.tensors:
                    return TopArray(name, self)
                held = ", ".join(self.tensors) or "no whole step"
                raise MissingTensorError(f"{self.folder} holds no {name}; it holds {held}")
            return TraceArray(name, self.parts)
        if name.startswith("_"):  # copying and other protocols of Python ask for names that a trace does not have
            raise AttributeError(name)
        near = difflib.get_close_matches(name, dir(self), n=1)
        meant = f"did you mean {near[0]}? It" if near else "it"
        raise AttributeError(
            f"{self.folder}: this trace has no {name!r}; {meant} has {', '.join((*self._readable, *_ATTRIBUTES))}"
        )

    def __dir__(self) -> list[str]:
        names = {*super().__dir__()}
        with contextlib.suppress(TraceError):  # a damaged trace says so when it is read
            names.update(self._readable)
        return sorted(names)

    @property
    def _readable(self) -> tuple[str, ...]:
        """Names of the tensors that can be read; those of which only the largest values were kept included."""
        return tuple(
            name for name in TRACE_AXES if name in self.tensors or (name in TOPPED and f"top_{name}" in self.tensors)
        )

    @property
    def complete(self) -> bool:
        """Whether the generation ran to its end."""
        return bool(self.manifest["complete"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every complete part on disk, listed in the manifest or not."""
        with same_trace(self.place, self._checksums):
            return self._found_parts()

    @property
    def _checksums(self) -> tuple[str, ...]:
        return tuple(part["sha256"] for part in self.manifest["parts"])

    def _found_parts(self) -> tuple[Part, ...]:
        listed = {part["file"]: part for part in self.manifest["parts"]}
        found = {path.name for path in files_in(self.place, PART_GLOB, TraceError)}
        if lost := sorted(listed.keys() - found):
            raise TraceError(
                f"{self.folder}: expected {lost[0]}, which its manifest lists, found none; the trace was damaged after it was written"
            )
        if self.complete and (more := sorted(found - listed.keys())):
            raise TraceError(
                f"{self.folder}: expected the {len(listed)} parts that its manifest lists, found {more[0]} as well; it is of another "
                "trace: take it away"
            )
        parts, about = (
            list[Part](),
            {"crossing": attends_elsewhere(self.manifest), "mask_id": self.manifest.get("mask_id")},
        )
        prompt = (
            (self.manifest.get("prompt_length") or 0) if "length" in (self.manifest.get("sampler") or {}) else 0
        )  # all of a plain call is one
        about |= {"prompt_length": prompt, "listed": self._checksums}
        for name in sorted(found):
            part = read_part(self.place / name)
            expected = parts[-1].first_step + parts[-1].steps if parts else 0
            if part.first_step != expected:
                raise TraceError(
                    f"{part.path}: expected it to begin at step {expected}, found step {part.first_step}; a part is missing"
                )
            if parts and part.generation and parts[0].generation not in ("", part.generation):
                raise TraceError(
                    f"{part.path}: expected a part of the generation of {parts[0].path.name}, found one of another; take it away"
                )
            entry = listed.get(name)
            if entry is not None and part.steps != entry["steps"]:
                raise TraceError(
                    f"{part.path}: expected {entry['steps']} steps, as the manifest says, found {part.steps}; {DAMAGED}"
                )
            check_shapes(part.path, part.steps, part.shapes, part.dtypes, self.manifest)
            if parts and (lost := sorted(parts[0].shapes.keys() - part.shapes.keys())):
                raise TraceError(
                    f"{part.path}: expected {lost[0]}, which {parts[0].path.name} has, found none; {DAMAGED}"
                )
            checksum = None if entry is None else entry["sha256"]
            parts.append(replace(part, sha256=checksum, verify=self.verifies, **about))
        written = sum(part.steps for part in parts)
        if self.complete and written != (said := self.manifest.get("steps", written)):
            raise TraceError(f"{self.folder}: expected {said} steps, as its manifest says, found {written}; {DAMAGED}")
        canvases = [part.shapes["tokens"][-1] for part in parts if "tokens" in part.shapes]
        if self.complete and canvases and (said := self.manifest.get("prompt_length") or 0) > (most := max(canvases)):
            raise TraceError(
                f"{self.folder}: prompt_length: expected at most the {most} tokens of a canvas, found {said}; {DAMAGED}"
            )
        return tuple(parts)

    def verify(self) -> None:
        """Compare every listed part with its checksum now; otherwise each is compared when it is first read.

        Raises:
            TraceError: a part has other bytes than were written.
        """
        for part in self.parts:
            part.compare()

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors in the trace."""
        return tuple(name for name in TRACE_AXES if self.parts and name in self.parts[0].shapes)

    @cached_property
    def steps(self) -> int:
        """Number of complete steps on disk."""
        return sum(part.steps for part in self.parts)

    @property
    def layers(self) -> tuple[str, ...]:
        """Module paths of the layers, in order."""
        return tuple(self.manifest["layers"])

    @property
    def heads(self) -> int:
        """Number of query heads of a layer."""
        return int(self.manifest["heads"])

    @property
    def causal(self) -> bool:
        """Whether columns are running sums of an autoregressive model."""
        return bool(self.manifest["causal"])

    def token_text(self, token: int) -> str:
        """Return a token as text, as the model's tokenizer decodes it; ``<ID>`` where the trace has no text for it.

        Raises:
            CallError: no whole number.
        """
        try:
            if isinstance(token, bool):
                raise TypeError
            number = operator.index(token)  # of NumPy and torch too
        except TypeError as error:
            raise CallError(f"token: expected a whole number, found {describe(token)}") from error
        return self.manifest.get("vocabulary", {}).get(str(number), f"<{number}>")

    def step_parts(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 step of every part, for reading a long trace in pieces."""
        for part in self.parts:
            yield part.first_step, part.first_step + part.steps


def read_manifest(folder: Path, verify: bool = True) -> dict[str, Any]:
    """Return the manifest of a trace.

    Raises:
        TraceError: it is missing, cannot be read, has another format version, a field that does not fit, or was changed.
    """
    from sinkscope.traces.manifest_schema import TraceManifest

    path = folder / MANIFEST
    if not exists(folder):
        raise TraceError(f"no trace at {folder}: the folder does not exist")
    if not exists(path):
        raise TraceError(f"no trace at {folder}: {_lacking(folder)}{_waiting_in(folder)}")
    manifest = read_json_object(path, TraceError, DAMAGED)
    version = manifest.get("format")
    if isinstance(version, str) and version.startswith("sinkscope emergence"):
        raise TraceError(
            f"no trace at {folder}: expected a trace, found what a training showed of its sinks; "
            f"`sinkscope watch-training {folder}` shows it"
        )
    if version != FORMAT or isinstance(version, bool):
        raise TraceError(
            f"{folder}: expected a trace of format {FORMAT}, found {describe(version)}; read it with the sinkscope that wrote it, "
            "or record again"
        )
    if manifest.get("level") == "statistics":
        raise TraceError(
            f"{folder} holds statistics, not a trace; `sinkscope sinks {folder}` shows them, `sinkscope trace` makes traces"
        )
    check_fields(manifest, TraceManifest, str(path), TraceError, DAMAGED)
    if verify:
        compare_checksum(manifest, path, TraceError)
    manifest["model"] = {"name": NAMELESS, **manifest.get("model", {})}
    return manifest


def _lacking(path: Path) -> str:
    """Return what was expected at a path without a manifest, what is there, and what to do."""
    if not path.exists():
        return f"expected a folder with {MANIFEST}, found a link that leads nowhere"
    if not path.is_dir():
        folder = f"; pass its folder, {path.parent}" if path.name == MANIFEST or path.match(PART_GLOB) else ""
        return f"expected a folder with {MANIFEST}, found a file{folder}"
    names = sorted(one.name for one in files_in(path, "*", TraceError))
    if not names:
        return f"expected {MANIFEST} in it, found an empty folder; `sinkscope trace MODEL --out {path}` makes one there"
    if DRIFT in names:
        what = f"how far keys and values move between steps ({DRIFT})"
        return f"expected a trace, found {what}; `sinkscope trace` makes one without --keep drift"
    others = " and others" if len(names) > 1 else ""
    return f"expected {MANIFEST} in it, found {describe(names[0])}{others}; `sinkscope trace MODEL --out FOLDER` makes one in a new folder"


def _waiting_in(folder: Path) -> str:
    """Return where the trace is that a killed run was to replace, as the end of a message; nothing where there is none."""
    aside = next((folder / name for name in (ASIDE, MOVING) if exists(folder / name)), None)
    return "" if aside is None else f"; the trace that was to be replaced is in {aside}"


def expect_steps(trace: Any, purpose: str) -> None:
    """Raise TraceError for a trace without a whole step; ``purpose`` says what it was wanted for."""
    if not trace.steps:
        folder = getattr(trace, "folder", None)
        where = "" if folder is None else f"{folder}: "
        advice = _waiting_in(folder) or "; record it again with --overwrite" if isinstance(folder, Path) else ""
        raise TraceError(f"{where}the trace holds no whole step yet; there is nothing to {purpose}{advice}")


def trace_folders(path: Path) -> list[Path]:
    """Return the folders of the traces at ``path``: itself, or its numbered folders.

    One that is empty is left out, because a recording that was stopped has left it; so is one with nothing that a recording writes.

    Raises:
        TraceError: one trace and numbered ones, or a numbered folder that cannot be read, or holds files of a trace but no manifest.
    """
    alone = exists(path / MANIFEST)
    numbered = [one for one in files_in(path, "[0-9]*", TraceError) if one.name.isdecimal()]
    found = [one for one in numbered if exists(one / MANIFEST)]
    if alone and found:
        raise TraceError(
            f"{path}: expected one trace or numbered ones, found {MANIFEST} beside {found[0].name}; move one of them away"
        )
    if alone:
        return [path]
    for one in numbered if found else ():
        if one not in found and (
            one.is_symlink() or any(RECORDED.fullmatch(file.name) for file in files_in(one, "*", TraceError))
        ):
            raise TraceError(
                f"{one}: expected {MANIFEST} in it, as in the other {len(found)} of {path}, found none; a trace was damaged there: record "
                "it again, or take the folder away"
            )
    return found


def open_traces(path: str | Path, *, verify: bool = True) -> list[Trace]:
    """Return all traces at a path: one, or the numbered ones of a batch.

    Args:
        verify: as in `open_trace`.

    Raises:
        TraceError: there is none.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    return [Trace(one, verify) for one in folders] if folders else [Trace(folder, verify)]


def as_trace(trace: Any) -> Any:
    """Return a trace as it is, and open a path; for functions that take either.

    Raises:
        TraceError, CallError: see `open_trace`; or it is neither.
    """
    if not isinstance(trace, str | Path) and not hasattr(trace, "steps"):
        raise CallError(f"expected an open trace or the path of one, found {type(trace).__name__}")
    return open_trace(trace) if isinstance(trace, str | Path) else trace


def open_trace(path: str | Path, *, verify: bool = True) -> Trace:
    """Open one trace; only its manifest is read until it is indexed.

    Args:
        verify: compares each file with its checksum and checks its values, when it is first read in this process.

    Raises:
        TraceError: missing, damaged, or of another format version.
        CallError: a folder of several traces.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    if len(folders) > 1:
        raise CallError(
            f"{folder} holds {len(folders)} traces; open one of them, such as {folders[0]}, or use open_traces"
        )
    return Trace(folders[0] if folders else folder, verify)
