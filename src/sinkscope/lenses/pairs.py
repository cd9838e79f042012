"""Pairs of a sink and a position without one, and the tokens that finally stand around them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from sinkscope.traces import Trace

PLACES = ("masked", "written", "prompt")
PAIRS = 5
"""At most so many sinks of a step on each kind of place, those of most heads; with their matches 30 positions."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sinks of a step, their matches, the number of `PLACES` of both, and the heads that have the sink as their main
    sink; ``alone``: sinks without a match, left out.
    """

    sink: Int[np.ndarray, " pair"]
    match: Int[np.ndarray, " pair"]
    place: Int[np.ndarray, " pair"]
    heads: Int[np.ndarray, " pair"]
    alone: int

    @property
    def rows(self) -> Int[np.ndarray, " row"]:
        """The sinks, then the matches."""
        return np.concatenate([self.sink, self.match])

    def tokens(self, canvas: Int[np.ndarray, " position"], masked: Bool[np.ndarray, " position"]) -> np.ndarray:
        """Return the token of the final ``canvas`` in front of, on and behind each row, [row, neighbour]; −1 for none,
        and around a mask for a token that is already written.
        """
        at = self.rows[:, None] + np.array([-1, 0, 1])
        inside = (at >= 0) & (at < len(canvas))
        inside &= (np.tile(self.place, 2)[:, None] != 0) | masked[at.clip(0, len(masked) - 1)]
        return np.where(inside, canvas[at.clip(0, len(canvas) - 1)], -1)


def pair_up(
    heads: Int[np.ndarray, " position"],
    sinks: Bool[np.ndarray, " position"],
    place: Int[np.ndarray, " position"],
    predicts_mask: Bool[np.ndarray, " position"],
    rng: np.random.Generator,
) -> Pairs:
    """Return the pairs of one canvas.

    Args:
        heads: of how many heads a position is the main sink.
        sinks: whether it is a sink in any head.
        place: the number of its place in `PLACES`.
        predicts_mask: whether the token that is predicted from it is masked.
    """
    free, pairs, alone = ~sinks, list[tuple[int, int]](), 0
    for number in range(len(PLACES)):
        standing = np.flatnonzero((heads > 0) & (place == number))
        for sink in standing[np.argsort(-heads[standing], kind="stable")][:PAIRS].tolist():
            alike = np.flatnonzero(free & (place == number) & (predicts_mask == predicts_mask[sink]))
            if not len(alike):
                alone += 1
                continue
            match = int(alike[(np.abs(alike - sink) + rng.random(len(alike)) / 2).argmin()])
            free[match] = False
            pairs.append((sink, match))
    sink, match = np.array(pairs, int).reshape(-1, 2).T
    return Pairs(sink, match, place[sink], heads[sink], alone)


def final_canvas(trace: Trace) -> Int[np.ndarray, " position"]:
    """Return the canvas behind the last step, a causal model's with its last token; −1 beyond it and on a mask."""
    tokens, written = np.asarray(trace.tokens[-1]), np.asarray(trace.written[-1])
    canvas = np.full(max(len(tokens), len(written)), -1)
    canvas[: len(tokens)] = tokens
    there = np.flatnonzero(written >= 0)
    canvas[there] = written[there]
    mask = trace.manifest.get("mask_id")
    return canvas if mask is None else np.where(canvas == mask, -1, canvas)
