"""Moves and drift of main sinks, in absolute positions and relative to the frontier of the masks.

A change of place is a swap where both places are sinks in both steps, else a move. Drift is the slope of the position;
relative to a frontier (the nearest, first or last mask, the right edge of the running block), as samplers move these.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

IsSink = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Tells for steps, layers, heads and positions, four arrays of one length, whether Eq. 3 holds there."""

FRONTIERS = ("nearest_mask", "leftmost_mask", "rightmost_mask", "block_edge")


def slopes(position: Float[np.ndarray, "step *head"]) -> Float[np.ndarray, "*head"]:
    """Return the least-squares slope of a position in positions a step, exact for whole ones; NaN below two steps."""
    position = np.asarray(position, dtype=np.float64)
    there = ~np.isnan(position)
    step = np.arange(len(position), dtype=np.float64).reshape(-1, *[1] * (position.ndim - 1))
    count = there.sum(axis=0)
    several = np.maximum(count, 1)
    centred = np.where(there, step - np.rint((there * step).sum(axis=0) / several), 0.0)
    apart = np.where(there, position - np.rint(np.where(there, position, 0.0).sum(axis=0) / several), 0.0)
    squares = count * (centred**2).sum(axis=0) - centred.sum(axis=0) ** 2
    products = count * (centred * apart).sum(axis=0) - centred.sum(axis=0) * apart.sum(axis=0)
    return np.divide(products, squares, out=np.full(squares.shape, np.nan), where=(count > 1) & (squares > 0))


def as_positions(main: Int[np.ndarray, "step layer head"]) -> Float[np.ndarray, "step layer head"]:
    """Return main sinks with NaN instead of −1."""
    return np.where(main >= 0, main, np.nan).astype(np.float64)


@dataclass(frozen=True, eq=False)
class MainMoves:
    """Moves (to the right positive) and swaps of each head's main sink between ``pairs`` of steps that have one."""

    distance: Int[np.ndarray, "transition layer head"]
    pairs: Int[np.ndarray, "layer head"]
    moves: Int[np.ndarray, "layer head"]
    swaps: Int[np.ndarray, "layer head"]
    drift: Float[np.ndarray, "layer head"]

    @classmethod
    def of(cls, main: Int[np.ndarray, "step layer head"], is_sink: IsSink | None = None) -> "MainMoves":
        """Return the moves of main sinks (−1: none); without ``is_sink`` every change of place is a move."""
        there = main >= 0
        both = there[1:] & there[:-1]
        distance = np.where(both, main[1:] - main[:-1], 0)
        swapped = np.zeros(distance.shape, bool)
        if is_sink is not None:
            step, layer, head = np.nonzero(distance)
            before, after = main[step, layer, head], main[step + 1, layer, head]
            swapped[step, layer, head] = is_sink(step, layer, head, after) & is_sink(step + 1, layer, head, before)
        distance = np.where(swapped, 0, distance)
        counts = (one.sum(axis=0) for one in (both, distance != 0, swapped))
        return cls(distance, *counts, slopes(as_positions(main)))


def relative_positions(
    main: Int[np.ndarray, "step layer head"],
    frontier: str,
    masked: Bool[np.ndarray, "step position"],
    edges: Float[np.ndarray, " step"],
) -> Float[np.ndarray, "step layer head"]:
    """Return the positions of the main sinks minus that of one of `FRONTIERS`; NaN where one is missing."""
    position = as_positions(main)
    if frontier == "nearest_mask":
        near = nearest_masks(masked)
        at = np.take_along_axis(near, np.maximum(main, 0).reshape(len(main), -1), axis=1).reshape(main.shape)
        return position - at
    if frontier == "block_edge":
        return position - edges[:, None, None]
    left, right = masked.argmax(axis=1), masked.shape[1] - 1 - masked[:, ::-1].argmax(axis=1)
    at = np.where(masked.any(axis=1), left if frontier == "leftmost_mask" else right, np.nan)
    return position - at[:, None, None]


def nearest_masks(masked: Bool[np.ndarray, "step position"]) -> Float[np.ndarray, "step position"]:
    """Return the masked position nearest to each position, ties to the left; NaN where none is masked."""
    here = np.arange(masked.shape[1], dtype=np.float64)
    left = np.maximum.accumulate(np.where(masked, here, -np.inf), axis=1)
    right = np.minimum.accumulate(np.where(masked, here, np.inf)[:, ::-1], axis=1)[:, ::-1]
    near = np.where(here - left <= right - here, left, right)
    return np.where(np.isinf(near), np.nan, near)


def blocks_of(written: Int[np.ndarray, "step position"], first: int, block: int) -> Int[np.ndarray, " step"]:
    """Return the block (of ``block`` tokens from ``first`` on) of each step, of its first commit; −1 before any."""
    committed = written >= 0
    found = np.where(committed.any(axis=1), (committed.argmax(axis=1) - first) // block, -1)
    latest = np.maximum.accumulate(np.where(found >= 0, np.arange(len(found)), -1))
    return np.where(latest >= 0, found[np.maximum(latest, 0)], -1)


def block_edges(blocks: Int[np.ndarray, " step"], first: int, block: int) -> Float[np.ndarray, " step"]:
    """Return the last position of the block of each step; NaN where there is none."""
    return np.where(blocks >= 0, first + (blocks + 1) * block - 1, np.nan).astype(np.float64)
