"""Held-out canvases on which a network in training is measured, always the same ones."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from sinkscope.errors import CallError
from sinkscope.roles import Probe

FIRST_READ = 64
"""Queries of an autoregressive model that are not judged: the first ones see few keys, which take much of each."""
MASKED = 0.5
"""Share of the tokens of a canvas that are masked for a diffusion model."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """One canvas and what is predicted on it.

    Attributes:
        probe: the canvas as the network sees it, with its readers.
        targets: the token that each reader predicts.
        queries: the readers as the option ``queries=`` of a rule, such as ``8-10+12``.
    """

    probe: Probe
    targets: Int[np.ndarray, " reader"]
    queries: str


def hold_out(
    tokens: Sequence[Any],
    predictable: Sequence[Any] | None = None,
    *,
    mask_id: int | None,
    shift: bool = False,
    seed: int = 0,
) -> list[HeldOut]:
    """Return canvases with their readers: for a diffusion model with half of what it may predict masked.

    Args:
        tokens: token ids of each canvas: lists, arrays or tensors.
        predictable: whether a token may be predicted, for each position of each canvas; everywhere when None.
        mask_id: None for an autoregressive model, of which queries from the 64th on, or the last three quarters, read.
        shift: whether a masked token is read one place to its left.
        seed: of the masks.

    Raises:
        CallError: a canvas that holds the mask already, or on which there is nothing to predict.
    """
    found = []
    free_places = predictable if predictable is not None else [np.ones(len(canvas), bool) for canvas in tokens]
    for number, (canvas, free) in enumerate(zip(tokens, free_places, strict=True)):
        canvas, free = np.array(canvas, np.int64), np.array(free, bool)
        if mask_id is not None and (canvas == mask_id).any():
            at = int((canvas == mask_id).argmax())
            raise CallError(f"canvas {number}: expected no masks, found the mask token {mask_id} at position {at}")
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
        readers = np.append(chosen[1:], False) if mask_id is None or shift else chosen
        queries = "masked"
        if mask_id is None or shift:
            places = np.flatnonzero(readers)
            runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
            queries = "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        found.append(HeldOut(Probe(number, 0, seen, readers, readers), canvas[chosen], queries))
    return found


def fingerprint(canvases: Sequence[HeldOut]) -> str:
    """Return the sha256 over all canvases and readers, hexadecimal."""
    digest = hashlib.sha256()
    for one in canvases:
        for array in (one.probe.tokens, one.probe.readers, one.targets):
            digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()
