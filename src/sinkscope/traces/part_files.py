"""The parts of a trace: safetensors files of a few steps, their shapes, types and values."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from sinkscope.axes import HEAD, KV_HEAD, LAYER, STEP, TRACE_AXES
from sinkscope.errors import TraceError
from sinkscope.runs.files import compare_file
from sinkscope.traces.format import DAMAGED, DTYPES, write_whole

ROUNDING = 1e-2
"""How far below 0, and by which share above the queries of its canvas, a sum of attention may come out."""
_IDS = ("tokens", "written", "predicted", "lengths")
_SUMS = ("column_sums", "column_sums_masked", "column_sums_prompt", "last_query", "newest_columns")
_FILL = {"F32": np.nan, "I32": -1, "U8": 0}


def type_of(name: str) -> str:
    """Return the type of a tensor, as safetensors names it."""
    return "U8" if name == "masked" else "I32" if name in _IDS or name.endswith("_key") else "F32"


def widen(name: str, array: np.ndarray, width: int) -> np.ndarray:
    """Return an array whose last axis is filled up to ``width``: with NaN, −1 where it holds ids, 0 in `masked`."""
    if array.ndim == 0 or array.shape[-1] >= width:
        return array
    room = [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])]
    return np.pad(array, room, constant_values=_FILL[type_of(name)])


def write_part(path: Path, steps: list[dict[str, np.ndarray]], metadata: dict[str, str]) -> str:
    """Write steps stacked along a new first axis; a last axis that grew is filled up to the widest step.

    The bytes are those of `safetensors.numpy.save`, which orders metadata at random.

    Args:
        steps: at least one; all have the tensors of the first.

    Returns:
        The sha256 of the file, hexadecimal.
    """
    codes = {dtype: code for code, dtype in DTYPES.items()}
    stacked = {}
    for name in steps[0]:
        arrays = [step[name] for step in steps]
        width = max(array.shape[-1] if array.ndim else 0 for array in arrays)
        stacked[name] = np.stack([widen(name, array, width) for array in arrays])
    order = sorted(stacked, key=lambda name: (list(codes).index(stacked[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        array, start, end = stacked[name], end, end + stacked[name].nbytes
        header[name] = {"dtype": codes[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
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
    """One file of a trace.

    Attributes:
        sha256: of the file, if the manifest lists it.
        verify: whether the file is compared with it when it is first read in this process.
        generation: hash of the manifest and the first tokens, the same in all parts of a trace; empty in a bundle.
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
            compare_file(self.path, self.sha256, TraceError, "its manifest")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path}: {error}; {DAMAGED}, or was moved since it was opened") from error


def read_part(path: Path) -> Part:
    """Return the description of a part: its steps, and the shapes and types of its tensors."""
    with _open(path) as file:
        metadata = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
        shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
        dtypes = {name: one.get_dtype() for name, one in slices.items()}
    if not {"first_step", "steps"} <= metadata.keys():
        raise TraceError(f"{path}: expected a part of a trace with first_step and steps; {DAMAGED}")
    first, steps = int(metadata["first_step"]), int(metadata["steps"])
    return Part(path, first, steps, shapes, dtypes, generation=metadata.get("generation", ""))


def check_shapes(
    path: Path,
    steps: int,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    manifest: Mapping[str, Any],
) -> None:
    """Raise TraceError for a tensor of another rank, size or type than its axes, the steps and the model have."""
    sizes = {STEP: steps, LAYER: len(manifest["layers"]), HEAD: manifest["heads"]}
    if manifest.get("kv_heads"):
        sizes[KV_HEAD] = manifest["kv_heads"]
    for name in shapes.keys() & TRACE_AXES.keys():  # others are of later versions
        axes, shape = TRACE_AXES[name], shapes[name]
        expected = [sizes.get(axis, size) for axis, size in zip(axes, shape, strict=False)]
        if len(axes) != len(shape) or list(shape) != expected or 0 in shape:
            wanted = " × ".join(f"{axis} {sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise TraceError(f"{path}: {name}: expected {wanted}, found {list(shape)}; {DAMAGED}")
        if dtypes[name] not in (wanted := type_of(name), "F16" if wanted == "F32" else wanted):
            raise TraceError(f"{path}: {name}: expected values of type {wanted}, found {dtypes[name]}; {DAMAGED}")


def check_values(path: Path, arrays: Mapping[str, np.ndarray], mask_id: int | None, crossing: bool) -> None:
    """Raise TraceError for values that attention, tokens or norms cannot have.

    Args:
        arrays: the tensors of a part, with the axes of `TRACE_AXES`.
        mask_id: the mask token, if the trace has one.
        crossing: whether the keys are another stack's tokens, any number of whose queries may see one.
    """
    lengths, tokens = arrays.get("lengths"), arrays.get("tokens")
    if lengths is not None and tokens is not None and lengths.max() != tokens.shape[-1]:
        raise TraceError(
            f"{path}: lengths: expected the longest to be the {tokens.shape[-1]} positions of tokens; {DAMAGED}"
        )
    for name, array in arrays.items():
        for wrong, expected in _wrong_values(name, array, lengths, crossing):
            if wrong.size:
                raise TraceError(f"{path}: {name}: expected {expected}, found {wrong.flat[0]}; {DAMAGED}")
    both = mask_id is not None and {"tokens", "masked"} <= arrays.keys()
    if both and ((arrays["masked"] != 0) != (arrays["tokens"] == mask_id)).any():
        raise TraceError(f"{path}: masked: expected 1 where tokens has the mask token {mask_id} only; {DAMAGED}")


def _wrong_values(
    name: str, array: np.ndarray, lengths: np.ndarray | None, crossing: bool
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the values of a tensor that cannot be, with the values expected in their place."""
    if name == "masked":
        yield array[array > 1], "0 or 1"
    elif array.dtype.kind in "iu":
        yield array[array < (1 if name == "lengths" else -1)], "tokens and positions"
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
