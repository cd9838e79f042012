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
        pairs, moves, swaps = (one.sum(axis=0) for one in (both, distance != 0, swapped))
        return cls(distance, pairs, moves, swaps, slopes(as_positions(main)))


def relative_positions(
    main: Int[np.ndarray, "step layer head"],
    frontier: str,
    masked: Bool[np.ndarray, "step position"],
    edges: Float[np.ndarray, " step"],
) -> Float[np.ndarray, "step layer head"]:
    """Return the positions of the main sinks minus that of one of `FRONTIERS`; NaN where one is missing."""
    position = as_positions(main)
    if frontier == "nearest_mask":
        places = np.maximum(main, 0).reshape(len(main), -1)
        return position - np.take_along_axis(nearest_masks(masked), places, axis=1).reshape(main.shape)
    if frontier == "block_edge":
        return position - edges[:, None, None]
    at = masked.argmax(axis=1) if frontier == "leftmost_mask" else masked.shape[1] - 1 - masked[:, ::-1].argmax(axis=1)
    return position - np.where(masked.any(axis=1), at, np.nan)[:, None, None]


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


STATIC_SHARE = 0.95
KINDS = ("static", "moved", "vanished", "reappeared", "one_step", "lasting")
STATIC, MOVED, VANISHED, REAPPEARED, ONE_STEP, LASTING = range(len(KINDS))
PAIRS = 2_000_000


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes by head, first step, position; ``kind``: number in `KINDS`; ``successor``: it moved to that, or −1."""

    head: Int[np.ndarray, " episode"]
    position: Int[np.ndarray, " episode"]
    first: Int[np.ndarray, " episode"]
    last: Int[np.ndarray, " episode"]
    kind: Int[np.ndarray, " episode"]
    successor: Int[np.ndarray, " episode"]


def find_episodes(
    step: Int[np.ndarray, " sink"],
    head: Int[np.ndarray, " sink"],
    position: Int[np.ndarray, " sink"],
    steps: int,
    tolerance: int = 0,
    short_too: bool = True,
    ordered: bool = False,
) -> Episodes:
    """Return the episodes of sinks (``ordered``: by head, key, step); ``short_too``: with successors of short ones."""
    if not ordered:
        order = np.lexsort((step, position, head))
        step, head, position = (one[order] for one in (step, head, position))
    step, head, position = (np.asarray(one, dtype=np.int64) for one in (step, head, position))
    fresh = (np.diff(head, prepend=-1) != 0) | (np.diff(position, prepend=-1) != 0)
    fresh |= np.diff(step, prepend=-1) > 1 + tolerance
    start = np.flatnonzero(fresh)
    end = np.append(start[1:], len(step))[: len(start)] - 1
    head, position, first, last = head[start], position[start], step[start], step[end]
    again = (np.diff(head, append=-1) == 0) & (np.diff(position, append=-1) == 0)
    order = np.argsort((head * (steps + 1) + first) * (int(position.max(initial=0)) + 1) + position, kind="stable")
    head, position, first, last, again = (one[order] for one in (head, position, first, last, again))
    static = last - first + 1 >= STATIC_SHARE * steps
    asked = ~static & (last < steps - 1) & (short_too | (last > first))
    successor = _successors(head, position, first, last, np.flatnonzero(asked), steps)
    kind = np.where(last < steps - 1, VANISHED, LASTING)
    kind[again] = REAPPEARED
    kind[successor >= 0] = MOVED
    kind[first == last] = ONE_STEP
    kind[static] = STATIC
    return Episodes(head, position, first, last, kind, successor)


def _successors(
    head: np.ndarray, position: np.ndarray, first: np.ndarray, last: np.ndarray, asked: np.ndarray, steps: int
) -> np.ndarray:
    """Return the numbers of the successors, −1 where there is none; episodes are ordered by head and first step."""
    successor, none = np.full(len(head), -1), np.iinfo(np.int64).max
    start = head * (steps + 2) + first
    low = np.searchsorted(start, head[asked] * (steps + 2) + last[asked] - 1)
    counts = np.searchsorted(start, head[asked] * (steps + 2) + last[asked] + 1, side="right") - low
    asked, low, counts = asked[counts > 0], low[counts > 0], counts[counts > 0]
    pieces = np.split(np.arange(len(asked)), np.flatnonzero(np.diff(np.cumsum(counts) // PAIRS)) + 1)
    for piece in pieces if len(asked) else []:
        begin = np.cumsum(counts[piece]) - counts[piece]
        number = np.repeat(asked[piece], counts[piece])
        other = np.arange(len(number)) + np.repeat(low[piece] - begin, counts[piece])
        distance = np.abs(position[other] - position[number])
        fits = (distance > 0) & (first[other] > first[number]) & (last[other] > last[number])
        nearest = np.minimum.reduceat(np.where(fits, distance * len(head) + other, none), begin)
        found = nearest < none
        successor[asked[piece][found]] = nearest[found] % len(head)
    return successor
