"""Candidates: the columns of a layer that are sinks at the loosest point, one by one.

A few columns in a hundred are; every statistic of sinks at every point is then read from this short list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.points import Point


@dataclass(frozen=True)
class Candidates:
    """Columns above the loosest threshold, ordered by step, head, key.

    Attributes:
        column: in queries' worth.
        excess, percent: over the mean of the other columns, in queries' worth and in percent of all attention.
        points: where statistics are told of them.
    """

    step: Int[np.ndarray, " candidate"]
    head: Int[np.ndarray, " candidate"]
    key: Int[np.ndarray, " candidate"]
    column: Float[np.ndarray, " candidate"]
    excess: Float[np.ndarray, " candidate"]
    percent: Float[np.ndarray, " candidate"]
    points: tuple[Point, ...]

    def at(self, point: Point) -> Bool[np.ndarray, " candidate"]:
        """Which of them are sinks at a point."""
        return (self.excess if point.unit == "queries" else self.percent) > point.excess

    @cached_property
    def _levels(self) -> dict[str, tuple[list[float], np.ndarray]]:
        """{unit: (its ε in rising order, how many of them each candidate exceeds)}."""
        found = {}
        for unit, size in (("queries", self.excess), ("percent", self.percent)):
            excesses = sorted({point.excess for point in self.points if point.unit == unit})
            found[unit] = excesses, np.searchsorted(np.array(excesses, size.dtype), size)
        return found

    def tally(
        self, place: Int[np.ndarray, " candidate"], places: int, weights: Float[np.ndarray, " candidate"] | None = None
    ) -> Float[np.ndarray, "point place"] | Int[np.ndarray, "point place"]:
        """How many are sinks at each point and place, or what they weigh together: ``np.bincount`` at every point at once."""
        above = {}
        for unit, (excesses, level) in self._levels.items():
            kinds = len(excesses) + 1
            table = np.bincount(place * kinds + level, weights, places * kinds).reshape(places, kinds)
            exceeding = table[:, ::-1].cumsum(axis=1)[:, ::-1]
            above |= {(unit, excess): exceeding[:, number + 1] for number, excess in enumerate(excesses)}
        return np.array([above[point.unit, point.excess] for point in self.points])


def find_candidates(
    columns: Float[np.ndarray, "step head key"],
    excess: Float[np.ndarray, "step head key"],
    total: Float[np.ndarray, "step head"],
    points: Sequence[Point],
) -> Candidates:
    """The sinks of one layer at any of the points.

    Args:
        excess: `definition.excess_of` the columns.
        total: what they add up to.
    """
    percent = percent_per_query(total)
    lowest = np.full(total.shape, np.inf)
    for point in points:
        with np.errstate(divide="ignore"):
            threshold = point.excess if point.unit == "queries" else np.where(percent > 0, point.excess / percent, np.inf)
        lowest = np.minimum(lowest, threshold)
    with np.errstate(invalid="ignore"):
        # a hair lower, so that rounding here leaves the decision to `at`
        step, head, key = np.nonzero(excess > (lowest * (1 - 1e-5)).astype(np.float32)[..., None])
    found = excess[step, head, key]
    return Candidates(step, head, key, columns[step, head, key], found, found * percent[step, head].astype(np.float32), tuple(points))


def percent_per_query(total: Float[np.ndarray, "*head"]) -> Float[np.ndarray, "*head"]:
    """Percent of all attention that one query's worth is; 0 where there is no attention."""
    total = np.asarray(total, dtype=np.float64)
    return np.divide(100.0, total, out=np.zeros_like(total), where=total > 0)
