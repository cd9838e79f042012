"""Reading traces lazily: a step, a layer, a head at a time, without torch."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sinkscope.axes import TRACE_AXES
from sinkscope.errors import CallError, TraceError
from sinkscope.traces.format import DTYPES, FORMAT, MANIFEST, PART_GLOB, checksum
from sinkscope.traces.indexing import full_index
from sinkscope.traces.parts import widen
from sinkscope.traces.top import TOPPED, TopArray

_REQUIRED = ("complete", "parts", "layers", "heads", "causal")


@dataclass(frozen=True)
class Part:
    """One file of a trace."""

    path: Path
    first_step: int
    steps: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


class TraceArray:
    """One tensor of a trace, read when indexed; indices as in NumPy's basic indexing, step first.

    Raises:
        IndexError: an index beyond an axis.
    """

    def __init__(self, name: str, parts: tuple[Part, ...]) -> None:
        self.name, self._parts = name, parts
        shapes = [part.shapes[name] for part in parts]
        self.axes = TRACE_AXES[name]
        rest = tuple(max(sizes) for sizes in zip(*(shape[1:] for shape in shapes), strict=True))
        self.shape = (sum(part.steps for part in parts), *rest)
        self.dtype = DTYPES[parts[0].dtypes[name]]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"TraceArray({self.name}, {' × '.join(f'{axis} {size}' for axis, size in zip(self.axes, self.shape, strict=True))})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self[:]
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        index = full_index(index, self.name, self.axes)
        if not all(isinstance(one, int | np.integer | slice) and not isinstance(one, bool) for one in index):
            raise IndexError(f"{self.name} takes whole numbers and slices; for anything else load it first: trace.{self.name}[:][...]")
        step, rest = index[0], index[1:]
        for axis, size, one in zip(self.axes[1:], self.shape[1:], rest, strict=False):
            if isinstance(one, int | np.integer) and not -size <= one < size:
                raise IndexError(f"{axis} {one} is out of range: {self.name} has {size}")
        if isinstance(step, int | np.integer):
            number = int(step) + (len(self) if step < 0 else 0)
            if not 0 <= number < len(self):
                raise IndexError(f"step {step} is out of range: the trace has {len(self)}")
            return self._read(number, number + 1, rest)[0]
        start, stop, stride = step.indices(len(self))
        if stride < 0:
            return self[:][index]
        return self._read(start, max(start, stop), rest)[::stride]

    def _read(self, start: int, stop: int, rest: tuple[Any, ...]) -> np.ndarray:
        """Steps start…stop−1; the step axis stays."""
        rest = tuple(int(one) if isinstance(one, np.integer) else one for one in rest)
        # safetensors slices the axes before the last one that are ints or plain slices; NumPy does the rest.
        leading: list[Any] = []
        for one, size in zip(rest, self.shape[1:-1], strict=False):
            leading.append(one + size if isinstance(one, int) and one < 0 else one if isinstance(one, int) else slice(None))
        pieces = []
        for part in self._parts:
            first, last = max(start, part.first_step), min(stop, part.first_step + part.steps)
            if first < last:
                here = slice(first - part.first_step, last - part.first_step)
                with _opened(part.path) as file:
                    pieces.append(file.get_slice(self.name)[(here, *leading)])
        if len(self.shape) == 1:
            return np.concatenate(pieces) if pieces else np.zeros(0, self.dtype)
        kept = [
            size
            for size, one in zip(self.shape[1:], (*leading, *[slice(None)] * len(self.shape)), strict=False)
            if not isinstance(one, int)
        ]
        whole = (
            np.concatenate([widen(self.name, piece, self.shape[-1]) for piece in pieces]) if pieces else np.zeros((0, *kept), self.dtype)
        )
        pending = [one for number, one in enumerate(rest) if number >= len(leading) or not isinstance(leading[number], int)]
        return whole[(slice(None), *pending)]


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
        raise AttributeError(f"a trace has no {name!r}; it has {', '.join(TRACE_AXES)}, manifest, parts, steps, layers, heads, complete")

    @property
    def complete(self) -> bool:
        """Whether the generation ran to its end."""
        return bool(self.manifest["complete"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every whole part on disk, listed in the manifest or not."""
        listed = {part["file"] for part in self.manifest["parts"]}
        found = {path.name for path in self.folder.glob(PART_GLOB)}
        if lost := sorted(listed - found):
            raise TraceError(f"{self.folder}: its manifest lists {lost[0]}, which is not there; the trace was damaged after it was written")
        parts: list[Part] = []
        for name in sorted(found):
            part = _read_part(self.folder / name)
            expected = parts[-1].first_step + parts[-1].steps if parts else 0
            if part.first_step != expected:
                raise TraceError(f"{part.path}: expected it to begin at step {expected}, it begins at {part.first_step}; a part is missing")
            parts.append(part)
        return tuple(parts)

    def verify(self) -> None:
        """Compares every listed part with its checksum; reading by itself does not, so that it stays lazy.

        Raises:
            TraceError: a part is not what was written.
        """
        for part in self.manifest["parts"]:
            path = self.folder / part["file"]
            if path.exists() and checksum(path.read_bytes()) != part["sha256"]:
                raise TraceError(
                    f"{path}: expected the bytes whose sha256 its manifest gives, found others; the file was damaged or changed"
                )

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors it holds."""
        return tuple(name for name in TRACE_AXES if self.parts and name in self.parts[0].shapes)

    @cached_property
    def steps(self) -> int:
        """Whole steps on disk."""
        return sum(part.steps for part in self.parts)

    @property
    def layers(self) -> tuple[str, ...]:
        """Module paths of the layers, in order."""
        return tuple(self.manifest["layers"])

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return int(self.manifest["heads"])

    @property
    def causal(self) -> bool:
        """Whether columns are running sums of an autoregressive model."""
        return bool(self.manifest["causal"])

    def token_text(self, token: int) -> str:
        """A token as text, as the model's tokenizer writes it."""
        return self.manifest.get("vocabulary", {}).get(str(int(token)), f"<{int(token)}>")

    def step_parts(self) -> Iterator[tuple[int, int]]:
        """First and last + 1 step of every part, for reading a long trace piece by piece."""
        for part in self.parts:
            yield part.first_step, part.first_step + part.steps


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path} cannot be read ({error}); the file is damaged") from error


def _read_part(path: Path) -> Part:
    with _opened(path) as file:
        metadata = file.metadata() or {}
        names = list(file.keys())
        slices = {name: file.get_slice(name) for name in names}
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
    if not {"first_step", "steps"} <= metadata.keys():
        raise TraceError(f"{path}: expected a part of a trace, found a safetensors file without first_step and steps")
    return Part(path, int(metadata["first_step"]), int(metadata["steps"]), shapes, dtypes)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a trace.

    Raises:
        TraceError: none there, not readable, or of another format version.
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
            f"{folder}: a trace of format {version!r}; this sinkscope reads format {FORMAT}. Use the version that wrote it, or record again"
        )
    if manifest.get("level") == "statistics":
        raise TraceError(f"{folder} holds statistics, not a trace; `sinkscope sinks {folder}` shows them, `sinkscope trace` makes traces")
    missing = [key for key in _REQUIRED if key not in manifest]
    if missing:
        raise TraceError(f"{path}: expected {', '.join(missing)} in it, found none; the trace is damaged")
    return manifest


def trace_folders(path: Path) -> list[Path]:
    """The folders of the traces at ``path``: itself, or its numbered ones."""
    if (path / MANIFEST).exists():
        return [path]
    return sorted(one.parent for one in path.glob(f"[0-9]*/{MANIFEST}"))


def open_traces(path: str | Path) -> list[Trace]:
    """All traces at a path: one, or the numbered ones of a batch.

    Raises:
        TraceError: none there.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    return [Trace(one) for one in folders] if folders else [Trace(folder)]


def open_trace(path: str | Path) -> Trace:
    """Opens one trace; nothing but its manifest is read until it is indexed.

    Raises:
        TraceError: missing, damaged, or of another format version.
        CallError: a folder of several traces.
    """
    folder = Path(path)
    folders = trace_folders(folder)
    if len(folders) > 1:
        raise CallError(f"{folder} holds {len(folders)} traces; open one of them, such as {folders[0]}, or use open_traces")
    return Trace(folders[0] if folders else folder)
