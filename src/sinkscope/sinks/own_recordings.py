"""The check of an object of one's own in a trace's place, before anything is computed of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.argument_types import check_argument, fits, in_words, plain
from sinkscope.axes import TRACE_AXES
from sinkscope.errors import CallError
from sinkscope.sinks.followed_columns import Followed, Recorded
from sinkscope.traces.own_arrays import checked_step, readable
from sinkscope.traces.reading import Trace, expect_steps

_MANIFEST: dict[str, Any] = {
    "prompt_length": int | None,
    "mask_id": int | None,
    "eos_id": int | None,
    "special_ids": Sequence[int] | None,
    "sampler": Mapping[str, Any] | None,
    "model": Mapping[str, Any] | None,
    "vocabulary": Mapping[int | str, str] | None,
}


def check_recorded(recorded: Recorded, purpose: str, names: Iterable[str] = ()) -> None:
    """Raise an error for an object of one's own in a trace's place that could be none; what a `Trace` holds is checked where it is read.

    Columns and norms are not read: their values are for `check_steps`, or for `checked_step` while they are taken in.

    Args:
        purpose: what the trace is wanted for.
        names: of the tensors that are read where there are any, beside tokens and the columns in which sinks are counted and followed.

    Raises:
        CallError: arrays that NumPy does not read or of other shapes than a trace has, lengths or a manifest that cannot be.
        SinkscopeError: no whole step.
    """
    own, name = not isinstance(recorded, Trace), type(recorded).__name__
    if own and (not fits(recorded.steps, int) or recorded.steps < 0):
        raise CallError(f"{name}.steps: expected a whole number from 0 upwards, found {in_words(recorded.steps)}")
    expect_steps(recorded, purpose)
    if not own:
        return
    if not fits(causal := getattr(recorded, "causal", None), bool):
        raise CallError(f"{name}.causal: expected True or False, found {in_words(causal)}")
    tensors = _tensors_of(recorded, names)
    for one, value in tensors.items():
        _check_readable(f"{name}.{one}", value)
    _check_shapes(name, int(recorded.steps), tensors)
    _check_manifest(f"{name}.manifest", getattr(recorded, "manifest", None), np.shape(tensors["column_sums"])[3])
    lengths_of(recorded)


def check_steps(recorded: Recorded) -> None:
    """Raise an error for values of an object of one's own that no step could have; tokens and columns are read, a step at a time.

    Raises:
        CallError: such values, or columns beyond the length of a canvas.
    """
    if isinstance(recorded, Trace):
        return
    tensors, sizes = _tensors_of(recorded, ()), dict[str, int]()
    for step, length in enumerate(lengths_of(recorded).tolist()):
        where = f"{type(recorded).__name__}, step {step}: "
        checked_step(where, {one: value[step][..., :length] for one, value in tensors.items()}, sizes)
        beyond = np.asarray(tensors["column_sums"][step][..., length:])
        if (found := beyond[~np.isnan(beyond)]).size:
            raise CallError(
                f"{where}column_sums: expected NaN beyond the {length} tokens of the canvas, found {found[0]}"
            )


def lengths_of(recorded: Recorded) -> np.ndarray:
    """Return the lengths of the canvases of an object of one's own: as it tells them, or as many tokens as are no −1.

    Raises:
        CallError: they are no numbers from 1 to the keys of its columns.
    """
    name, keys, told = type(recorded).__name__, np.shape(recorded.column_sums)[3], getattr(recorded, "lengths", None)
    if told is not None:
        _check_readable(f"{name}.lengths", told)
    tokens = readable(f"{name}.tokens", recorded.tokens[:])
    lengths = (tokens >= 0).sum(axis=1).clip(max=keys) if told is None else readable(f"{name}.lengths", told[:])
    if lengths.shape != (recorded.steps,) or lengths.dtype.kind not in "iu":
        raise CallError(
            f"{name}.lengths: expected whole numbers [step] of {recorded.steps} steps, found {in_words(lengths)}"
        )
    if (wrong := lengths[(lengths < 1) | (lengths > keys)]).size:
        raise CallError(f"{name}.lengths: expected 1 to the {keys} keys of column_sums, found {wrong[0]}")
    return lengths


def _tensors_of(recorded: Recorded, names: Iterable[str]) -> dict[str, Any]:
    needed = dict.fromkeys(("column_sums", "tokens", Followed.of(recorded).tensor))
    tensors = {one: getattr(recorded, one, None) for one in (*needed, *names)}
    return {one: value for one, value in tensors.items() if one in needed or value is not None}


def _check_readable(name: str, value: Any) -> None:
    """Raise CallError for what NumPy cannot index or read, such as lists and tensors of torch with bfloat16 or gradients."""
    good = isinstance(getattr(value, "shape", None), tuple) and len(value.shape) > 0
    if good and np.ma.is_masked(value):
        raise CallError(
            f"{name}: expected an array without a mask, found values that are masked; cut them off, or write NaN there"
        )
    try:
        good = good and (not hasattr(value, "detach") or np.asarray(value[:1]) is not None)
    except (TypeError, RuntimeError):
        good = False
    if not good:
        advice = ".detach().float().cpu().numpy()" if hasattr(value, "detach") else "np.asarray of it"
        raise CallError(f"{name}: expected an array that NumPy reads, found {in_words(value)}; pass {advice}")


def _check_shapes(name: str, steps: int, tensors: Mapping[str, Any]) -> None:
    shapes = {one: tuple(value.shape) for one, value in tensors.items()}
    columns, tokens = shapes["column_sums"], shapes["tokens"]
    if len(columns) != 4 or columns[0] != steps or 0 in columns:
        raise CallError(
            f"{name}.column_sums: expected [step, layer, head, key] of {steps} steps, found {list(columns)}"
        )
    if len(tokens) != 2 or tokens[0] != steps or tokens[1] < columns[3]:
        raise CallError(
            f"{name}.tokens: expected [step, position] of {steps} steps and {columns[3]} keys, found {list(tokens)}"
        )
    for one, shape in shapes.items():
        axes = TRACE_AXES[one]
        if len(shape) != len(axes) or shape[0] != steps:
            raise CallError(f"{name}.{one}: expected [{', '.join(axes)}] of {steps} steps, found {list(shape)}")


def _check_manifest(name: str, manifest: Any, keys: int) -> None:
    """Raise CallError for a manifest that says what none can say."""
    if manifest is None:
        return
    check_argument(name, manifest, Mapping)
    for key, hint in _MANIFEST.items():
        check_argument(f"{name}[{key!r}]", manifest.get(key), hint)
    if not 0 <= (told := manifest.get("prompt_length") or 0) <= keys:
        raise CallError(f"{name}['prompt_length']: expected 0 to the {keys} tokens of the canvas, found {told}")
    check_argument(f"{name}['sampler']['block']", (manifest.get("sampler") or {}).get("block"), int | None)
    for token in manifest.get("vocabulary") or ():
        if not str(plain(token)).isdecimal():
            raise CallError(f"{name}['vocabulary']: expected the numbers of tokens, found {token!r}")
