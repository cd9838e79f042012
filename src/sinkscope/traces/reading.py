"""Reads traces lazily, one step, layer or head at a time, without torch."""

import contextlib
import difflib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from sinkscope.axes import TRACE_AXES
from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import FORMAT, MANIFEST, PART_GLOB, checksum
from sinkscope.traces.part_files import Part, read_part
from sinkscope.traces.top_columns import TOPPED, TopArray
from sinkscope.traces.trace_array import TraceArray

_ATTRIBUTES = ("manifest", "folder", "steps", "layers", "heads", "causal", "complete", "parts", "tensors")
_REQUIRED = ("complete", "parts", "layers", "heads", "causal")


class Trace:
    """One generation on disk. Tensors are attributes: ``trace.column_sums[step, layer, head]``; see `axes.TRACE_AXES`.

    Args:
        folder: with a manifest.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = read_manifest(folder)

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        return f"Trace({self.folder}, {self.steps} steps, {len(self.layers)} layers, {self.heads} heads{state})"

    def __getattr__(self, name: str) -> Any:
        if name in TRACE_AXES:
            if name not in self.tensors:
                if name in TOPPED and f"top_{name}" in self.tensors:
                    return TopArray(name, self)
                held = ", ".join(self.tensors) or "no whole step"
                raise TraceError(f"{self.folder} holds no {name}; it holds {held}")
            return TraceArray(name, self.parts)
        if name.startswith("_"):  # copying and other protocols of Python ask for names that a trace does not have
            raise AttributeError(name)
        near = difflib.get_close_matches(name, dir(self), n=1)
        meant = f"did you mean {near[0]}? It" if near else "it"
        raise AttributeError(f"{self.folder}: this trace has no {name!r}; {meant} has {', '.join((*self._readable, *_ATTRIBUTES))}")

    def __dir__(self) -> list[str]:
        names = {*super().__dir__()}
        with contextlib.suppress(TraceError):  # a damaged trace says so when it is read
            names.update(self._readable)
        return sorted(names)

    @property
    def _readable(self) -> tuple[str, ...]:
        """Names of the tensors that can be read; those of which only the largest values were kept included."""
        return tuple(name for name in TRACE_AXES if name in self.tensors or (name in TOPPED and f"top_{name}" in self.tensors))

    @property
    def complete(self) -> bool:
        """Whether the generation ran to its end."""
        return bool(self.manifest["complete"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every complete part on disk, listed in the manifest or not."""
        listed = {part["file"] for part in self.manifest["parts"]}
        found = {path.name for path in self.folder.glob(PART_GLOB)}
        if lost := sorted(listed - found):
            raise TraceError(
                f"{self.folder}: expected {lost[0]}, which its manifest lists, found none; the trace was damaged after it was written"
            )
        parts: list[Part] = []
        for name in sorted(found):
            part = read_part(self.folder / name)
            expected = parts[-1].first_step + parts[-1].steps if parts else 0
            if part.first_step != expected:
                raise TraceError(f"{part.path}: expected it to begin at step {expected}, found step {part.first_step}; a part is missing")
            parts.append(part)
        return tuple(parts)

    def verify(self) -> None:
        """Compare every listed part with its checksum. Reading does not do this, so that it stays lazy.

        Raises:
            TraceError: a part has other bytes than were written.
        """
        for part in self.manifest["parts"]:
            path = self.folder / part["file"]
            if path.exists() and checksum(path.read_bytes()) != part["sha256"]:
                raise TraceError(
                    f"{path}: expected the bytes whose sha256 its manifest gives, found others; the file was damaged or changed"
                )

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
        """Return a token as text, as the model's tokenizer decodes it; ``<ID>`` where the trace has no text for it."""
        return self.manifest.get("vocabulary", {}).get(str(int(token)), f"<{int(token)}>")

    def step_parts(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 step of every part, for reading a long trace in pieces."""
        for part in self.parts:
            yield part.first_step, part.first_step + part.steps


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a trace.

    Raises:
        TraceError: it is missing, cannot be read, or has another format version.
    """
    path = folder / MANIFEST
    if not folder.exists():
        raise TraceError(f"no trace at {folder}: the folder does not exist")
    if not path.exists():
        raise TraceError(
            f"no trace at {folder}: expected {MANIFEST} in it; `sinkscope trace MODEL --out {folder}` makes one in a new folder"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise TraceError(f"{path} cannot be read ({error}); the trace is damaged") from error
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if version != FORMAT:
        raise TraceError(
            f"{folder}: expected a trace of format {FORMAT}, found {version!r}; read it with the sinkscope that wrote it, or record again"
        )
    if manifest.get("level") == "statistics":
        raise TraceError(f"{folder} holds statistics, not a trace; `sinkscope sinks {folder}` shows them, `sinkscope trace` makes traces")
    missing = [key for key in _REQUIRED if key not in manifest]
    if missing:
        raise TraceError(f"{path}: expected {', '.join(missing)} in it, found none; the trace is damaged")
    return manifest


def trace_folders(path: Path) -> list[Path]:
    """Return the folders of the traces at ``path``: itself, or its numbered folders."""
    if (path / MANIFEST).exists():
        return [path]
    return sorted(one.parent for one in path.glob(f"[0-9]*/{MANIFEST}"))


def open_traces(path: str | Path) -> list[Trace]:
    """Return all traces at a path: one, or the numbered ones of a batch.

    Raises:
        TraceError: there is none.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    return [Trace(one) for one in folders] if folders else [Trace(folder)]


def as_trace(trace: Any) -> Any:
    """Return a trace as it is, and open a path; for functions that take either.

    Raises:
        TraceError, CallError: see `open_trace`.
    """
    return open_trace(trace) if isinstance(trace, str | Path) else trace


def open_trace(path: str | Path) -> Trace:
    """Open one trace; only its manifest is read until it is indexed.

    Raises:
        TraceError: missing, damaged, or of another format version.
        CallError: a folder of several traces.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    if len(folders) > 1:
        raise CallError(f"{folder} holds {len(folders)} traces; open one of them, such as {folders[0]}, or use open_traces")
    return Trace(folders[0] if folders else folder)
