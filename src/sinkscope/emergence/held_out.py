"""Held-out canvases on which a network in training is measured, always the same ones."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from sinkscope.documents import describe
from sinkscope.errors import CallError
from sinkscope.models.model import MOST_IDS
from sinkscope.roles import Probe

FIRST_READ = 64
"""Queries of an autoregressive model that are not judged: the first ones see few keys, which take much of each by themselves."""
MASKED = 0.5
"""Share of the tokens of a canvas that are masked for a diffusion model."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One canvas and what is predicted on it.

    Attributes:
        probe: the canvas as the network sees it, with its readers.
        targets: the token that each reader predicts.
        queries: the readers as the option ``queries=`` of a rule, such as ``8-10+12``.

    Raises:
        CallError: another number of targets than of readers, or queries that do not name these readers.
    """

    probe: Probe
    targets: Int[np.ndarray, " reader"]
    queries: str

    def __post_init__(self) -> None:
        readers = np.flatnonzero(self.probe.readers)
        if len(self.targets) != len(readers):
            raise CallError(
                f"targets: expected a token for each of the {len(readers)} readers, found {len(self.targets)}"
            )
        if self.queries not in ("masked", named := _ranges(readers)):
            raise CallError(f"queries: expected 'masked', or the readers {named!r}, found {describe(self.queries)}")


def hold_out(
    tokens: Sequence[Any],
    predictable: Sequence[Any] | None = None,
    *,
    mask_id: int | None,
    shift: bool = False,
    seed: int = 0,
) -> list[HeldOut]:
    """Return canvases with their readers, for a diffusion model with half of what it may predict masked, at least one token.

    Args:
        tokens: token ids of each canvas: lists, arrays or tensors.
        predictable: where a token may be predicted, a truth value for each position of each canvas; everywhere when None.
        mask_id: None for an autoregressive model, whose queries from the 64th on (or the last three quarters) are judged.
        shift: whether a masked token is read one place to its left.
        seed: of the masks.

    Raises:
        CallError: a canvas that is no row of tokens, that holds the mask already, or on which there is nothing to predict.
    """
    found = []
    if not abs(seed) < 1 << 63:
        raise CallError(f"seed: expected a whole number of at most 63 bits, found {describe(seed)}")
    if mask_id is not None and not 0 <= mask_id < 1 << 31:
        raise CallError(f"mask_id: expected a token id from 0 to {(1 << 31) - 1:,}, found {describe(mask_id)}")
    if predictable is not None and len(predictable) != len(tokens):
        raise CallError(
            f"predictable: expected an array for each of the {len(tokens)} canvases, found {len(predictable)}"
        )
    for number, canvas in enumerate(tokens):
        if isinstance(canvas, range) and canvas[MOST_IDS:]:
            raise CallError(f"canvas {number}: expected a row of at most {MOST_IDS:,} token ids, found {canvas}")
        canvas = _as_array(canvas)
        if canvas.ndim != 1 or canvas.dtype.kind not in "iu" or not len(canvas):
            raise CallError(f"canvas {number}: expected a row of token ids, found {canvas.dtype} {canvas.shape}")
        canvas = canvas.astype(np.int64)
        if mask_id is not None and (at := np.flatnonzero(canvas == mask_id)).size:
            raise CallError(
                f"canvas {number}: expected tokens without masks, found the mask token {mask_id} at position {at[0]}"
            )
        free = np.ones(len(canvas), bool) if predictable is None else _as_array(predictable[number], len(canvas))
        if free.shape != canvas.shape or free.dtype.kind not in "biu":
            raise CallError(
                f"predictable {number}: expected {len(canvas)} truth values, as its canvas has tokens, found {free.dtype} {free.shape}"
            )
        free = free.astype(bool)
        if mask_id is None:
            chosen = free & (np.arange(len(canvas)) > min(FIRST_READ, len(canvas) // 4))
            seen = canvas
        else:
            if shift:
                free[0] = False
            drawn = np.where(free, np.random.default_rng([seed % (1 << 64), number]).random(len(canvas)), 1)
            chosen = free & (drawn <= max(MASKED, drawn.min()))  # one of them at least
            seen = np.where(chosen, mask_id, canvas)
        if not chosen.any():
            raise CallError(
                f"canvas {number} has {len(canvas)} tokens and nothing to predict; expected longer canvases"
            )
        readers = chosen
        if mask_id is None or shift:
            readers = np.append(chosen[1:], False)
        queries = _ranges(np.flatnonzero(readers)) if mask_id is None or shift else "masked"
        found.append(HeldOut(Probe(number, 0, seen, readers, readers), canvas[chosen], queries))
    return found


def _as_array(values: Any, most: int = MOST_IDS) -> np.ndarray:
    """Return a list, an array or a tensor as an array, and as one of objects where it is none of numbers, or a longer range."""
    try:
        if isinstance(values, range) and values[most:]:
            return np.asarray(None)
        return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ):  # lists of several lengths; tensors of bfloat16, sparse, or on the device meta
        return np.asarray(None)


def _ranges(places: Int[np.ndarray, " reader"]) -> str:
    """Return positions in order as text: each run of them as its ends."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def fingerprint(canvases: Sequence[HeldOut]) -> str:
    """Return the sha256 over all canvases and readers, hexadecimal."""
    digest = hashlib.sha256()
    for one in canvases:
        for array in (one.probe.tokens, one.probe.readers, one.targets):
            digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()
