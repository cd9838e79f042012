"""What the tensors of a part may be: their shapes and types, from the header of the file, and their values, when one is first read."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.axes import HEAD, KEY, KV_HEAD, LAYER, POSITION, STEP, TRACE_AXES
from sinkscope.errors import TraceError

DAMAGED = "the trace is damaged"
WIDEST = 1 << 24
"""Tokens of the longest canvas: more than any model's."""
ROUNDING = 1e-2
"""How far below 0, and by which share above the queries of its canvas, a sum of attention may come out."""
_DTYPES = {
    name: "I32" for name in TRACE_AXES if name.endswith("_key") or name in ("tokens", "written", "predicted", "lengths")
}
_DTYPES["masked"] = "U8"
OF_GROUPS = ("column_sums_masked", "column_sums_prompt")
_SUMS = ("column_sums", *OF_GROUPS, "last_query", "newest_columns")


def check_shapes(
    path: Path,
    steps: int,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    manifest: Mapping[str, Any],
) -> None:
    """Compare the tensors of a part with the number of its steps and with what the manifest says of the model.

    Raises:
        TraceError: a tensor of another rank, size or type.
    """
    sizes: dict[str, int] = {STEP: steps, LAYER: len(manifest["layers"]), HEAD: manifest["heads"]}
    if manifest.get("kv_heads"):
        sizes[KV_HEAD] = manifest["kv_heads"]
    for name, shape in shapes.items():
        axes = TRACE_AXES.get(name)
        if axes is None:  # of a later version
            continue
        expected = " × ".join(f"{axis} {sizes[axis]}" if axis in sizes else axis for axis in axes)
        found = " × ".join(map(str, shape)) or "a single number"
        if len(shape) != len(axes) or any(
            sizes.get(axis, size) != size for axis, size in zip(axes, shape, strict=True)
        ):
            raise TraceError(f"{path}: {name}: expected {expected}, found {found}; {DAMAGED}")
        if any(axis in (KEY, POSITION) and not 1 <= size <= WIDEST for axis, size in zip(axes, shape, strict=True)):
            raise TraceError(f"{path}: {name}: expected 1 to {WIDEST} tokens, found {found}; {DAMAGED}")
        if dtypes[name] != (expected := expected_type(name)) and (expected, dtypes[name]) != ("F32", "F16"):
            raise TraceError(f"{path}: {name}: expected values of type {expected}, found {dtypes[name]}; {DAMAGED}")


def expected_type(name: str) -> str:
    """Return the type of a tensor, as safetensors names it."""
    return _DTYPES.get(name, "F32")


def check_lengths(path: Path, lengths: np.ndarray, width: int | None) -> None:
    """Check the lengths of the canvases of a part.

    Args:
        lengths: int32 [step].
        width: positions of the part's tokens, which are those of its longest canvas; None where there are none.

    Raises:
        TraceError: lengths that cannot be.
    """
    _refuse(path, "lengths", lengths[(lengths < 1) | (lengths > WIDEST)], "tokens of a canvas")
    if width is not None and (longest := int(lengths.max(initial=0))) != width:
        raise TraceError(
            f"{path}: lengths: expected the longest to be the {width} positions of tokens, found {longest}; {DAMAGED}"
        )


def check_values(path: Path, name: str, array: np.ndarray, lengths: np.ndarray | None, crossing: bool = False) -> None:
    """Check the values of a tensor of a part.

    Args:
        array: all of it, with the axes of `TRACE_AXES`.
        lengths: int32 [step], tokens of each canvas; None where the trace does not say.
        crossing: whether the keys are another stack's tokens, of which any number of queries may see one.

    Raises:
        TraceError: values that cannot be.
    """
    queries = WIDEST if crossing else array.shape[-1] if lengths is None else int(lengths.max(initial=0))
    for wrong, expected in wrong_values(name, array, lengths, queries):
        _refuse(path, name, wrong, expected)


def wrong_values(
    name: str, array: np.ndarray, lengths: np.ndarray | None, queries: int
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the values of a tensor that cannot be, with what was expected in their place.

    Args:
        array, lengths: see `check_values`.
        queries: of the longest canvas, whose attention a sum cannot exceed.
    """
    if name == "masked":
        yield array[(array < 0) | (array > 1)], "0 or 1"
    elif array.dtype.kind in "iu":
        yield array[array < -1], "tokens and positions from -1 upwards"
        if name == "tokens" and lengths is not None:
            beyond = array[~_on_canvas(array, lengths)]
            yield beyond[beyond != -1], "-1 beyond the length of a canvas"
    elif name in _SUMS:
        seen = array
        if lengths is not None:
            there = _on_canvas(array, lengths)
            seen, beyond = array[there], array[~there]
            yield beyond[~np.isnan(beyond)], "NaN beyond the length of a canvas"
        if name != "column_sums":  # where there was no such query, nothing is known
            seen = seen[~np.isnan(seen)]
        yield seen[~((seen >= -ROUNDING) & (seen <= queries * (1 + ROUNDING)))], "sums of attention"
        totals = np.asarray(np.nansum(array, axis=-1, dtype=np.float64))
        yield totals[totals > queries * (1 + ROUNDING)], f"columns of a head that add up to at most {queries} queries"
    else:
        yield array[np.isinf(array)], "finite numbers"
        if name.endswith("_norms"):
            yield array[array < 0], "norms from 0 upwards"
        if name == "self_attention":
            yield array[(array < -ROUNDING) | (array > 1 + ROUNDING)], "shares of attention from 0 to 1"


def _on_canvas(array: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return where the last axis of an array, whose first is the step, lies on the canvas; bool of its shape."""
    here = np.arange(array.shape[-1]) < lengths.reshape(-1, *[1] * (array.ndim - 1))
    return np.broadcast_to(here, array.shape)


def check_masked(path: Path, masked: np.ndarray, tokens: np.ndarray, mask_id: int) -> None:
    """Check that the positions which held the mask token are those that are said to be masked.

    Args:
        masked, tokens: [step, position].

    Raises:
        TraceError: others.
    """
    if len(wrong := np.argwhere((masked != 0) != (tokens == mask_id))):
        step, position = wrong[0].tolist()
        raise TraceError(
            f"{path}: masked: expected 1 where tokens has the mask token {mask_id}, and 0 elsewhere, found {masked[step, position]} beside "
            f"token {tokens[step, position]} at position {position} of its step {step}; {DAMAGED}"
        )


def check_prompt(path: Path, masked: np.ndarray, prompt_length: int) -> None:
    """Check that a generation begins without a mask in its prompt.

    Args:
        masked: [position], of the first step.

    Raises:
        TraceError: there is one.
    """
    if len(wrong := np.flatnonzero(masked[:prompt_length])):
        said = f"expected a prompt of {prompt_length} tokens without masks, as the manifest says"
        raise TraceError(f"{path}: masked: {said}, found one at position {wrong[0]}; {DAMAGED}")


def check_group(path: Path, name: str, part: np.ndarray, whole: np.ndarray) -> None:
    """Check that columns of a group of queries are no larger than those of all queries.

    Args:
        part, whole: [step, layer, head, key].

    Raises:
        TraceError: a larger one.
    """
    _refuse(
        path,
        name,
        part[part > whole * (1 + ROUNDING) + ROUNDING],
        "at most what column_sums has, of which it is a part",
    )


def check_keys(path: Path, name: str, array: np.ndarray, width: int) -> None:
    """Check the positions of the largest columns.

    Raises:
        TraceError: a position beyond the canvas.
    """
    _refuse(path, name, array[array >= width], f"positions below {width}")


def _refuse(path: Path, name: str, wrong: np.ndarray, expected: str) -> None:
    if wrong.size:
        raise TraceError(f"{path}: {name}: expected {expected}, found {wrong.flat[0]}; {DAMAGED}")
