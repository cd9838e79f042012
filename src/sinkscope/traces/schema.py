"""The schema of a part: shapes and types from `axes.TRACE_AXES`, compared when a trace is opened; values, compared by
`Trace.verify`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.axes import HEAD, KV_HEAD, LAYER, STEP, TRACE_AXES
from sinkscope.errors import TraceError

ROUNDING = 1e-2
"""How far below 0, and by which share above the queries of its canvas, a sum of attention may come out."""
_IDS = ("tokens", "written", "predicted", "lengths")
_SUMS = ("column_sums", "column_sums_masked", "column_sums_prompt", "last_query", "newest_columns")
DAMAGED = "the trace is damaged"


def type_of(name: str) -> str:
    """Return the type of a tensor, as safetensors names it."""
    return "U8" if name == "masked" else "I32" if name in _IDS or name.endswith("_key") else "F32"


def check_shapes(
    path: Path,
    steps: int,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    manifest: Mapping[str, Any],
) -> None:
    """Compare the tensors of a part with its steps and with the model in the manifest; skip tensors of later versions.

    Raises:
        TraceError: a tensor of another rank, size or type.
    """
    sizes = {STEP: steps, LAYER: len(manifest["layers"]), HEAD: manifest["heads"]}
    if manifest.get("kv_heads"):
        sizes[KV_HEAD] = manifest["kv_heads"]
    for name in shapes.keys() & TRACE_AXES.keys():
        axes, shape = TRACE_AXES[name], shapes[name]
        expected = [sizes.get(axis, size) for axis, size in zip(axes, shape, strict=False)]
        if len(axes) != len(shape) or list(shape) != expected or 0 in shape:
            wanted = " × ".join(f"{axis} {sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise TraceError(f"{path}: {name}: expected {wanted}, found {list(shape)}; {DAMAGED}")
        if dtypes[name] not in (wanted := type_of(name), "F16" if wanted == "F32" else wanted):
            raise TraceError(f"{path}: {name}: expected values of type {wanted}, found {dtypes[name]}; {DAMAGED}")


def check_values(path: Path, arrays: Mapping[str, np.ndarray], mask_id: int | None, crossing: bool) -> None:
    """Check the values of a part.

    Args:
        arrays: its tensors, with the axes of `TRACE_AXES`.
        mask_id: the mask token, if the trace has one.
        crossing: whether the keys are another stack's tokens, any number of whose queries may see one.

    Raises:
        TraceError: values that attention, tokens or norms cannot have.
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
            beyond = array[~np.broadcast_to(here, array.shape)]
            yield beyond[~np.isnan(beyond)], "NaN beyond the length of a canvas"
            if name == "column_sums":
                yield np.isnan(array[np.broadcast_to(here, array.shape)]).nonzero()[0][:1], "a number for every token"
    else:
        yield array[np.isinf(array)], "finite numbers"
        if name.endswith("_norms"):
            yield array[array < 0], "norms from 0 upwards"
