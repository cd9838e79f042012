"""Highlights: the steps and heads that Figures 4, 6 and 8 show, found a layer at a time."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks import HeadMovement, Track
from sinkscope.sinks.groups import LEAST_QUERIES


@dataclass(frozen=True)
class Jump:
    """The main sink of a head stands elsewhere one step later.

    Attributes:
        step: the step before.
        clean: the old position is no sink any more, and the new one was none before.
    """

    step: int
    layer: int
    head: int
    before: int
    after: int
    clean: bool

    @property
    def distance(self) -> int:
        """Positions, to the right positive."""
        return self.after - self.before


@dataclass(frozen=True)
class Split:
    """A step in which masked and unmasked queries of a head have different strongest keys.

    Attributes:
        clarity: how much more, in shares of a query's attention, each key gets from its own group than from the other;
            the smaller of the two.
    """

    step: int
    layer: int
    head: int
    masked_key: int
    unmasked_key: int
    clarity: float


@dataclass(frozen=True)
class Flash:
    """A sink that lives for one step."""

    step: int
    layer: int
    head: int
    position: int
    column_sum: float


def largest_jump(main: Int[np.ndarray, "step head"], selected: Bool[np.ndarray, "step head key"], layer: int) -> Jump | None:
    """The longest jump of a layer, clean ones before others; ties to the earlier step, then the lower head."""
    before, after = main[:-1], main[1:]
    step, head = np.nonzero((before >= 0) & (after >= 0) & (before != after))
    if not len(step):
        return None
    old, new = before[step, head], after[step, head]
    clean = ~selected[step + 1, head, old] & ~selected[step, head, new]
    best = int(np.lexsort((head, step, -np.abs(new - old), ~clean))[0])
    return Jump(int(step[best]), layer, int(head[best]), int(old[best]), int(new[best]), bool(clean[best]))


def clearest_split(
    columns: Float[np.ndarray, "step head key"],
    masked_columns: Float[np.ndarray, "step head key"],
    masked: Bool[np.ndarray, "step key"],
    lengths: Int[np.ndarray, " step"],
    layer: int,
) -> Split | None:
    """The step and head of a layer in which the two groups differ most clearly, on means over the queries of each group."""
    many = masked.sum(axis=-1)
    few = lengths - many
    enough = (many >= LEAST_QUERIES) & (few >= LEAST_QUERIES)
    if not enough.any():
        return None
    steps = np.flatnonzero(enough)
    of_masked = np.nan_to_num(masked_columns[steps]) / many[steps, None, None]
    of_unmasked = np.nan_to_num(columns[steps] - masked_columns[steps]) / few[steps, None, None]
    more = of_masked - of_unmasked
    first, second = of_masked.argmax(axis=-1), of_unmasked.argmax(axis=-1)
    mine = np.take_along_axis(more, first[..., None], axis=-1)[..., 0]
    theirs = -np.take_along_axis(more, second[..., None], axis=-1)[..., 0]
    clarity = np.where(first == second, -np.inf, np.minimum(mine, theirs))
    at, head = (int(one) for one in np.unravel_index(int(clarity.argmax()), clarity.shape))
    if clarity[at, head] <= 0:
        return None
    return Split(int(steps[at]), layer, head, int(first[at, head]), int(second[at, head]), float(clarity[at, head]))


def strongest_flash(tracks: Iterable[Track], columns: Float[np.ndarray, "step head key"], layer: int) -> Flash | None:
    """The strongest sink of a layer that lives for one step, neither the first nor the last."""
    flashes = [
        Flash(track.first_step, layer, track.head, track.position, float(columns[track.first_step, track.head, track.position]))
        for track in tracks
        if track.kind == "one_step" and 0 < track.first_step < len(columns) - 1
    ]
    return max(flashes, key=lambda flash: (flash.column_sum, -flash.step, -flash.head), default=None)


def leftmost_drift(heads: Iterable[HeadMovement], steps: int) -> HeadMovement | None:
    """The head whose main sink drifts left the fastest; where none does, the fastest to the right."""
    drifting = [head for head in heads if head.drift_per_step and head.steps_with_sink >= max(2, steps // 2) and head.moves]
    left = [head for head in drifting if head.drift_per_step is not None and head.drift_per_step < 0]
    return max(left or drifting, key=lambda head: (abs(head.drift_per_step or 0), -head.layer, -head.head), default=None)
