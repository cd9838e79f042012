"""Episodes: the maximal stretches of steps in which a position is a sink in a head, all heads at once.

The successor is the nearest longer one of the head that starts within one step of this one's end; ties to the first.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

STATIC_SHARE = 0.95
KINDS = ("static", "moved", "vanished", "reappeared", "one_step", "lasting")
STATIC, MOVED, VANISHED, REAPPEARED, ONE_STEP, LASTING = range(len(KINDS))
PAIRS = 2_000_000
"""Pairs of episodes that are compared at a time, which bounds the memory."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes by head, first step, position; ``kind``: number in `KINDS`; ``successor``: it moved to that, or −1."""

    head: Int[np.ndarray, " episode"]
    position: Int[np.ndarray, " episode"]
    first: Int[np.ndarray, " episode"]
    last: Int[np.ndarray, " episode"]
    kind: Int[np.ndarray, " episode"]
    successor: Int[np.ndarray, " episode"]

    @property
    def durations(self) -> Int[np.ndarray, " episode"]:
        return self.last - self.first + 1


def find_episodes(
    step: Int[np.ndarray, " sink"],
    head: Int[np.ndarray, " sink"],
    position: Int[np.ndarray, " sink"],
    steps: int,
    tolerance: int = 0,
    short_too: bool = True,
    ordered: bool = False,
) -> Episodes:
    """Return the episodes of sinks (``ordered``: by head, position, step), which gaps of ``tolerance`` do not end;
    ``short_too``: looks for successors of those of one step.
    """
    if not ordered:
        order = np.lexsort((step, position, head))
        step, head, position = (one[order] for one in (step, head, position))
    step, head, position = (np.asarray(one, dtype=np.int64) for one in (step, head, position))
    fresh = np.ones(len(step), dtype=bool)
    fresh[1:] = (head[1:] != head[:-1]) | (position[1:] != position[:-1]) | (step[1:] - step[:-1] > 1 + tolerance)
    start = np.flatnonzero(fresh)
    end = np.append(start[1:], len(step))[: len(start)] - 1
    head, position, first, last = head[start], position[start], step[start], step[end]
    again = np.zeros(len(start), dtype=bool)
    again[:-1] = (head[1:] == head[:-1]) & (position[1:] == position[:-1])
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
