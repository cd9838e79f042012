"""The points at which every statistic is told: ε = 1, 2, 3, 5 and 8, in queries' worth and in percent of all attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.errors import CallError
from sinkscope.sinks.definition import Unit, check_excess

EXCESSES = (1.0, 2.0, 3.0, 5.0, 8.0)


@dataclass(frozen=True, order=True)
class Point:
    """One threshold of Eq. 3.

    Attributes:
        excess: ε, in ``unit``.
        unit: ``queries`` (column sums) or ``percent`` of all attention.
    """

    excess: float
    unit: Unit = "queries"


POINTS = tuple(Point(excess, unit) for unit in ("queries", "percent") for excess in EXCESSES)

Place = tuple[tuple[str, Any], ...]
"""Where a number holds, such as (("excess", 3.0), ("unit", "queries"), ("layer", 2)); empty where one number is all."""

Values = dict[tuple[str, Place], float]
"""One prompt's numbers: {(name of the statistic, place): number}, NaN where the prompt has none."""


def sweep(points: Sequence[Point], statistic: Callable[[Point], Values]) -> Values:
    """A statistic at every point; the point goes in front of its place.

    Raises:
        CallError: a threshold that cannot hold, or a unit other than queries and percent.
    """
    found: Values = {}
    for point in points:
        check_point(point)
        for (name, place), value in statistic(point).items():
            found[name, (("excess", point.excess), ("unit", point.unit), *place)] = value
    return found


def check_point(point: Point) -> None:
    """Refuses a point at which no statistic is told.

    Raises:
        CallError: see `sweep`.
    """
    check_excess(point.excess, point.unit)
    if point.unit == "mean":
        raise CallError("unit: expected queries or percent, found 'mean'; a mean is percent / 100")
