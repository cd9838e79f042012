"""Reads traces lazily, one step, layer or head at a time, without torch."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sinkscope.axes import TOPPED, TRACE_AXES
from sinkscope.counts import counted
from sinkscope.errors import CallError, MissingTensorError, TraceError
from sinkscope.notebook_card import card
from sinkscope.runs.files import compare_checksum, read_json_object
from sinkscope.traces.format import (
    ASIDE,
    DAMAGED,
    FORMAT,
    MANIFEST,
    NAMELESS,
    PART_GLOB,
    Part,
    attends_elsewhere,
    check_shapes,
    check_values,
    hidden_rules,
    read_part,
)
from sinkscope.traces.trace_array import TopArray, TraceArray


class Trace:
    """One generation on disk. Tensors are attributes: ``trace.column_sums[step, layer, head]``; see `axes.TRACE_AXES`.

    ``place`` is the absolute path of the folder; ``verify`` compares each file with its checksum when it is first read.
    """

    def __init__(self, folder: str | Path, verify: bool = True) -> None:
        self.folder, self.verifies = Path(folder), verify
        self.manifest: dict[str, Any] = read_manifest(self.folder, verify)
        self.place = self.folder.absolute()

    def __repr__(self) -> str:
        state = "" if self.complete else ", incomplete"
        shape = f"{counted(self.steps, 'step')}, {counted(len(self.layers), 'layer')}, {counted(self.heads, 'head')}"
        return f"Trace({self.folder}, {shape}{state})"

    def _repr_html_(self) -> str:
        manifest = self.manifest
        kind = "autoregressive" if self.causal else "bidirectional"
        shape = f"{counted(len(self.layers), 'layer')} × {counted(self.heads, 'head')}"
        length = counted(manifest.get("prompt_length") or 0, "token")
        facts = {
            "model": f"{manifest['model']['name']}, {kind}, {shape}",
            "steps": f"{self.steps}{'' if self.complete else ', incomplete: the generation was cut short'}",
            "prompt": f"{length}: {manifest['prompt']}" if manifest.get("prompt") else None,
            "answer": manifest.get("text"),
            "hidden": ", ".join(hidden_rules(manifest)) or None,
        }
        arrays = [getattr(self, name) for name in self.tensors]
        tensors = [(one.name, " × ".join(one.axes), " × ".join(map(str, one.shape))) for one in arrays]
        return card(f"Trace {self.folder}", facts, ("tensor", "axes", "shape"), tensors, most=len(TRACE_AXES))

    def __getattr__(self, name: str) -> Any:
        if name not in TRACE_AXES:
            return object.__getattribute__(self, name)  # raises Python's own error
        if name in self.tensors:
            return TraceArray(name, self.parts)
        if f"top_{name}" in self.tensors:
            return TopArray(name, self)
        held = ", ".join(self.tensors) or "no whole step"
        raise MissingTensorError(f"{self.folder} holds no {name}; it holds {held}")

    def __dir__(self) -> list[str]:
        names = {*super().__dir__()}
        with contextlib.suppress(TraceError):  # a damaged trace says so when it is read
            names |= {*self.tensors} | {name for name in TOPPED if f"top_{name}" in self.tensors}
        return sorted(names)

    @property
    def complete(self) -> bool:
        """Whether the generation ran to its end."""
        return bool(self.manifest["complete"])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every complete part on disk, listed in the manifest or not."""
        listed = {part["file"]: part for part in self.manifest["parts"]}
        found = {path.name for path in self.place.glob(PART_GLOB)}
        if wrong := sorted(found ^ listed.keys() if self.complete else listed.keys() - found):
            found = "is missing" if wrong[0] in listed else "is there as well"
            expected = f"expected the parts that its manifest lists, {wrong[0]} {found}"
            raise TraceError(f"{self.folder}: {expected}; {DAMAGED}")
        parts: list[Part] = []
        for name in sorted(found):
            part = read_part(self.place / name)
            first = parts[0] if parts else part
            begins = parts[-1].first_step + parts[-1].steps if parts else 0
            entry = listed.get(name, {"steps": part.steps, "sha256": None})
            same = first.generation in ("", part.generation) and first.shapes.keys() == part.shapes.keys()
            if not same or (part.first_step, part.steps) != (begins, entry["steps"]):
                expected = f"{entry['steps']} steps from {begins} on, of the generation of {first.path.name}"
                holds = f"{part.steps} from {part.first_step} on{'' if same else ', of another one'}"
                raise TraceError(f"{part.path}: expected {expected}, found {holds}; a part is missing or {DAMAGED}")
            check_shapes(part.path, part.steps, part.shapes, part.dtypes, self.manifest)
            parts.append(replace(part, sha256=entry["sha256"], verify=self.verifies))
        return tuple(parts)

    def verify(self) -> None:
        """Raise TraceError for parts with other bytes than were written, or impossible values."""
        for part in self.parts:
            part.compare()
            arrays = {name: part.read(name, (slice(None),)) for name in part.shapes}
            check_values(part.path, arrays, self.manifest.get("mask_id"), attends_elsewhere(self.manifest))

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        return tuple(name for name in TRACE_AXES if self.parts and name in self.parts[0].shapes)

    @cached_property
    def steps(self) -> int:
        """Number of whole steps on disk."""
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
        """Return a token as text, as the model's tokenizer decodes it; ``<ID>`` if the trace has no text for it."""
        return self.manifest.get("vocabulary", {}).get(str(int(token)), f"<{int(token)}>")

    def step_parts(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last + 1 step of every part, for reading a long trace in pieces."""
        for part in self.parts:
            yield part.first_step, part.first_step + part.steps


def read_manifest(folder: Path, verify: bool = True) -> dict[str, Any]:
    """Return the manifest of a trace; raise TraceError for a missing or damaged one, or another format."""
    path = folder / MANIFEST
    if not path.exists():
        found = "a file" if folder.is_file() else "none in it" if folder.exists() else "no such folder"
        advice = _waiting_in(folder) or "; `sinkscope trace MODEL --out FOLDER` makes a trace in a new folder"
        raise TraceError(f"no trace at {folder}: expected a folder with {MANIFEST}, found {found}{advice}")
    manifest = read_json_object(path, TraceError, DAMAGED)
    version, advice = manifest.get("format"), "read it with the sinkscope that wrote it, or record again"
    if version == FORMAT and manifest.get("level") == "statistics":
        version, advice = "statistics", f"`sinkscope sinks {folder}` shows them"
    if version != FORMAT:
        raise TraceError(f"{folder}: expected a trace of format {FORMAT}, found {version}; {advice}")
    if verify:
        compare_checksum(manifest, path, TraceError)
    manifest["model"] = {"name": NAMELESS, **manifest.get("model", {})}
    return manifest


def _waiting_in(folder: Path) -> str:
    aside = folder / ASIDE
    return f"; the trace that was to be replaced is in {aside}" if aside.exists() else ""


def expect_steps(trace: Any, purpose: str) -> None:
    """Raise TraceError for a trace without a whole step; ``purpose`` says why it is read."""
    if not trace.steps:
        folder = Path(getattr(trace, "folder", ""))
        advice = _waiting_in(folder) or "; record it again with --overwrite"
        raise TraceError(f"{folder}: the trace holds no whole step yet; there is nothing to {purpose}{advice}")


def trace_folders(path: Path) -> list[Path]:
    """Return the folders of the traces at ``path``: itself, or its numbered folders; none of a recording that was
    stopped at once. Raise TraceError for both, or for parts of a trace without a manifest.
    """
    alone = (path / MANIFEST).exists()
    numbered = sorted(one for one in path.glob("[0-9]*") if one.name.isdecimal())
    found = [one for one in numbered if (one / MANIFEST).exists()]
    if alone and found:
        raise TraceError(f"{path}: expected one trace or numbered ones, found both ({found[0].name}); move one away")
    if found and (damaged := [one for one in numbered if one not in found and any(one.glob(PART_GLOB))]):
        raise TraceError(f"{damaged[0]}: expected {MANIFEST}, as in the other {len(found)}, found none; {DAMAGED}")
    return [path] if alone else found


def open_traces(path: str | Path, *, verify: bool = True) -> list[Trace]:
    """Return all traces at a path: one, or the numbered ones of a batch; see `open_trace`."""
    return [Trace(one, verify) for one in trace_folders(Path(path)) or [path]]


def as_trace(trace: Any) -> Any:
    """Return a trace as it is, and open a path; for functions that take either."""
    return open_trace(trace) if isinstance(trace, str | Path) else trace


def open_trace(path: str | Path, *, verify: bool = True) -> Trace:
    """Open one trace; only its manifest is read until it is indexed. ``verify`` compares each file with its checksum
    when it is first read. Raises TraceError for a missing or damaged one, CallError for a folder of several traces.
    """
    folders = trace_folders(Path(path)) or [path]
    if len(folders) > 1:
        raise CallError(
            f"{path} holds {len(folders)} traces; open one of them, such as {folders[0]}, or use open_traces"
        )
    return Trace(folders[0], verify)
