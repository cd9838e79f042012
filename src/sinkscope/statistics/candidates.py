"""Candidates: the columns of one step that are sinks at the loosest threshold, one by one.

A few columns in a hundred are candidates; every statistic of sinks, at every threshold, is read from this short list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.statistics.thresholds import UNITS, Threshold


@dataclass(frozen=True, eq=False)
class Candidates:
    """Columns of one step that exceed the loosest threshold, ordered by layer, head, key.

    Attributes:
        column: column sum, in queries' worth.
        excess, percent: over the mean of the other columns, in queries' worth and in percent of all attention.
        thresholds: at which sinks are counted among them.
    """

    layer: Int[np.ndarray, " candidate"]
    head: Int[np.ndarray, " candidate"]
    key: Int[np.ndarray, " candidate"]
    column: Float[np.ndarray, " candidate"]
    excess: Float[np.ndarray, " candidate"]
    percent: Float[np.ndarray, " candidate"]
    thresholds: tuple[Threshold, ...]

    def at(self, threshold: Threshold) -> Bool[np.ndarray, " candidate"]:
        """Return which of them are sinks at a threshold."""
        return (self.excess if threshold.unit == "queries" else self.percent) > threshold.excess

    @cached_property
    def levels(self) -> dict[str, Int[np.ndarray, " candidate"]]:
        """For each unit, how many of its rising thresholds each candidate exceeds; see `level_of`."""
        return {
            unit: np.searchsorted(np.array(rising_excesses(self.thresholds, unit), size.dtype), size)
            for unit, size in (("queries", self.excess), ("percent", self.percent))
        }

    def tally(
        self, place: Int[np.ndarray, " candidate"], places: int, weights: Float[np.ndarray, " candidate"] | None = None
    ) -> Float[np.ndarray, "threshold place"] | Int[np.ndarray, "threshold place"]:
        """Return how many sinks there are at each threshold and place, or what they weigh together: ``np.bincount`` at every threshold."""
        above = {}
        for unit in UNITS:
            excesses = rising_excesses(self.thresholds, unit)
            kinds = len(excesses) + 1
            table = np.bincount(place * kinds + self.levels[unit], weights, places * kinds).reshape(places, kinds)
            exceeding = table[:, ::-1].cumsum(axis=1)[:, ::-1]
            above |= {(unit, excess): exceeding[:, number + 1] for number, excess in enumerate(excesses)}
        return np.array([above[threshold.unit, threshold.excess] for threshold in self.thresholds])


def rising_excesses(thresholds: Sequence[Threshold], unit: str) -> list[float]:
    """Return the ε of all thresholds in a unit, in rising order."""
    return sorted({threshold.excess for threshold in thresholds if threshold.unit == unit})


def level_of(threshold: Threshold, thresholds: Sequence[Threshold]) -> int:
    """Return the level from which a candidate is a sink at a threshold."""
    return rising_excesses(thresholds, threshold.unit).index(threshold.excess) + 1


def find_candidates(
    columns: Float[np.ndarray, "layer head key"],
    excess: Float[np.ndarray, "layer head key"],
    percent: Float[np.ndarray, "layer head key"],
    thresholds: Sequence[Threshold],
) -> Candidates:
    """Return the columns of one step that are sinks at any of the thresholds.

    Args:
        excess, percent: `definition.excess_of` the columns, in queries' worth and in percent.
    """
    chosen = np.zeros(columns.shape, dtype=bool)
    for unit, size in (("queries", excess), ("percent", percent)):
        if excesses := rising_excesses(thresholds, unit):
            chosen |= size > excesses[0]
    place = np.flatnonzero(chosen)
    layer, head, key = np.unravel_index(place, chosen.shape)
    return Candidates(
        layer, head, key, columns.ravel()[place], excess.ravel()[place], percent.ravel()[place], tuple(thresholds)
    )
