"""The format of a trace folder: its manifest, and its parts, safetensors files of a few steps.

manifest.json                   written first, replaced after each part and at the end: model, axes, units, parts
steps-000000.safetensors …      parts of a few steps (see `writing`), written under another name and renamed
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sinkscope.axes import HEAD, KV_HEAD, LAYER, STEP, TRACE_AXES
from sinkscope.errors import TraceError
from sinkscope.runs import files

FORMAT = 1
NAMELESS = "a model without a name"
MANIFEST = "manifest.json"
BUNDLE = "bundle.json"
"""Makes a trace a bundle, see `bundles`."""
DRIFT = "drift.json"
"""What ``--keep drift`` writes instead of a trace."""
ASIDE = ".replaced.writing"
"""Where a trace waits that is to be replaced, until something is recorded in its place."""
DAMAGED = "the trace is damaged"
ROOM = "make room or choose another folder"
PART = "steps-{:06d}.safetensors"
PART_GLOB = "steps-??????.safetensors"
DTYPES = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32), "F16": np.dtype(np.float16), "U8": np.dtype(np.uint8)}
"""The types of a part, in the order in which safetensors stores them; F16, of bundles, is read as F32."""
ROUNDING = 1e-2
"""How far below 0, and by which share above the queries of its canvas, a sum of attention may come out."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_IDS = ("tokens", "written", "predicted", "lengths")
_SUMS = ("column_sums", "column_sums_masked", "column_sums_prompt", "last_query", "newest_columns")
_FILL = {"F32": np.nan, "I32": -1, "U8": 0}

write_whole = partial(files.write_whole, failure=TraceError, advice=ROOM)
write_together = partial(files.write_together, failure=TraceError, advice=ROOM)


def attends_elsewhere(manifest: Mapping[str, Any]) -> bool:
    """Return whether the keys of a trace are the tokens of another stack: the cross-attention of a decoder."""
    return manifest.get("attends_to") != manifest.get("stack")


def block_of(manifest: Mapping[str, Any]) -> int | None:
    """Return the tokens of a block of the sampler, or of its cache; None without blocks."""
    sampler = manifest.get("sampler") or {}
    given = re.search(r"[:,]\s*block=([1-9]\d{0,8})\b", str(sampler.get("cache")))
    return sampler.get("block") or (int(given[1]) if given else None)


def hidden_rules(manifest: Mapping[str, Any]) -> list[str]:
    """Return the rules of hiding under which a trace or statistics were recorded, without fields that are None."""
    found = []
    for one in manifest.get("hidden") or ():
        rules = one.get("rules", [one["rule"]] if "rule" in one else [one]) if isinstance(one, Mapping) else [one]
        found += [re.sub(r"\b\w+=None, |, \w+=None\b", "", str(rule)) for rule in rules]
    return found


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a trace."""
    text = json.dumps(files.with_checksum(manifest), indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / MANIFEST, text.encode())


def type_of(name: str) -> str:
    """Return the type of a tensor, as safetensors names it."""
    return "U8" if name == "masked" else "I32" if name in _IDS or name.endswith("_key") else "F32"


def widen(name: str, array: np.ndarray, width: int) -> np.ndarray:
    """Return an array whose last axis is filled up to ``width``: with NaN, −1 where it holds ids, 0 in `masked`."""
    if array.ndim == 0 or array.shape[-1] >= width:
        return array
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, room, constant_values=_FILL[type_of(name)])


def write_part(
    path: Path, steps: list[dict[str, np.ndarray]], metadata: dict[str, str], manifest: Mapping[str, Any]
) -> str:
    """Write steps, stacked along a new first axis, and return the sha256 of the file; raise TraceError for tensors that
    no trace has, or others than in the first step. A last axis that grew is filled up to the widest step. The bytes are
    those of `safetensors.numpy.save`, which orders metadata at random.
    """
    if other := next((step.keys() for step in steps if step.keys() != steps[0].keys()), None):
        raise TraceError(f"{path}: expected the tensors of the first step, {[*steps[0]]}, found {[*other]}")
    stacked = {}
    for name in steps[0]:
        arrays = [step[name] for step in steps]
        width = max(array.shape[-1] if array.ndim else 0 for array in arrays)
        stacked[name] = np.stack([widen(name, array, width) for array in arrays])
    types = {name: _CODES.get(array.dtype, str(array.dtype)) for name, array in stacked.items()}
    check_shapes(path, len(steps), {name: array.shape for name, array in stacked.items()}, types, manifest)
    order = sorted(stacked, key=lambda name: ([*_CODES].index(stacked[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        array, start, end = stacked[name], end, end + stacked[name].nbytes
        header[name] = {"dtype": types[name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = [stacked[name].reshape(-1).view(np.uint8).data for name in order]
    pieces = [len(text).to_bytes(8, "little") + text, *data]
    write_whole(path, pieces)
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class Part:
    """One file of a trace, compared with its ``sha256``, if the manifest lists it, when it is first read (``verify``).

    ``generation``: hash of the manifest and the first tokens, the same in all parts of a trace; empty in a bundle.
    """

    path: Path
    first_step: int
    steps: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    sha256: str | None = None
    verify: bool = True
    generation: str = ""

    def read(self, name: str, index: tuple[Any, ...]) -> np.ndarray:
        """Return what an index of ints and slices selects of a tensor; raise TraceError for a changed file."""
        if self.verify:
            self._compared  # noqa: B018 - once
        with _open(self.path) as file:
            found = file.get_slice(name)[index]
        return found.astype(np.float32) if found.dtype == np.float16 else found

    @cached_property
    def _compared(self) -> None:
        self.compare()

    def compare(self) -> None:
        """Raise TraceError where the file has other bytes than its checksum, if the manifest lists it."""
        if self.sha256 is not None:
            files.compare_file(self.path, self.sha256, TraceError, "its manifest")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path}: {error}; {DAMAGED}, or was moved since it was opened") from error


def read_part(path: Path) -> Part:
    """Return the description of a part: its steps, and the shapes and types of its tensors."""
    with _open(path) as file:
        metadata = file.metadata()
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
    first, steps = int(metadata["first_step"]), int(metadata["steps"])
    return Part(path, first, steps, shapes, dtypes, generation=metadata.get("generation", ""))


def check_shapes(
    path: Path, steps: int, shapes: Mapping[str, Any], dtypes: Mapping[str, str], manifest: Mapping[str, Any]
) -> None:
    """Raise TraceError for a tensor of another rank, size or type than its axes, the steps and the model have."""
    sizes = {STEP: steps, LAYER: len(manifest["layers"]), HEAD: manifest["heads"]}
    if manifest.get("kv_heads"):
        sizes[KV_HEAD] = manifest["kv_heads"]
    for name in shapes.keys() & TRACE_AXES.keys():  # others are of later versions
        axes, shape, kind = TRACE_AXES[name], shapes[name], type_of(name)
        expected = [sizes.get(axis, size) for axis, size in zip(axes, shape, strict=False)]
        fits = len(axes) == len(shape) and list(shape) == expected and 0 not in shape
        if not fits or dtypes[name] not in (kind, "F16" if kind == "F32" else kind):
            wanted = " × ".join(f"{axis} {sizes[axis]}" if axis in sizes else axis for axis in axes)
            found = f"{list(shape)} of type {dtypes[name]}"
            raise TraceError(f"{path}: {name}: expected {wanted} of type {kind}, found {found}; {DAMAGED}")


def check_values(path: Path, arrays: Mapping[str, np.ndarray], mask_id: int | None, crossing: bool) -> None:
    """Raise TraceError for values of a part's tensors that attention, tokens or norms cannot have; ``crossing`` are
    those whose keys are another stack's tokens, any number of whose queries may see one.
    """
    for name, array in sorted(arrays.items(), key=lambda one: one[0] != "lengths"):  # others are read by the lengths
        for wrong, expected in _wrong_values(name, array, arrays, mask_id, crossing):
            if wrong.size:
                raise TraceError(f"{path}: {name}: expected {expected}, found {wrong.flat[0]}; {DAMAGED}")


def _wrong_values(
    name: str, array: np.ndarray, arrays: Mapping[str, np.ndarray], mask_id: int | None, crossing: bool
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the values of a tensor that cannot be, with the values expected in their place."""
    lengths, tokens = arrays.get("lengths"), arrays.get("tokens")
    if name == "masked":
        yield array[array > 1], "0 or 1"
        if mask_id is not None and tokens is not None:
            yield array[(array != 0) != (tokens == mask_id)], f"1 where tokens has the mask token {mask_id} only"
    elif array.dtype.kind in "iu":
        yield array[array < (1 if name == "lengths" else -1)], "tokens and positions"
        if name == "lengths" and tokens is not None and array.max() != tokens.shape[-1]:
            yield array.max(keepdims=True), f"the longest to be the {tokens.shape[-1]} positions of tokens"
    elif name in _SUMS:
        longest = array.shape[-1] if lengths is None else int(lengths.max())
        most = (np.inf if crossing else longest) * (1 + ROUNDING)
        known = array[~np.isnan(array)]
        yield known[~((known >= -ROUNDING) & (known <= most))], "sums of attention"
        if lengths is not None:
            here = np.arange(array.shape[-1]) < lengths.reshape(-1, *[1] * (array.ndim - 1))
            here = np.broadcast_to(here, array.shape)
            yield array[~here & ~np.isnan(array)], "NaN beyond the length of a canvas"
            if name == "column_sums":
                yield array[here & np.isnan(array)], "a number for every token"
    else:
        yield array[np.isinf(array)], "finite numbers"
        if name.endswith("_norms"):
            yield array[array < 0], "norms from 0 upwards"
