"""The thresholds ε at which every statistic is computed, as nobody knows the right one, and the ε curve's grid."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.errors import CallError
from sinkscope.sinks.definition import Unit, check_excess

Place = tuple[tuple[str, Any], ...]
"""Where a number holds, such as (("excess", 3.0), ("unit", "queries"), ("layer", 2)); empty where one number is all."""


@dataclass(frozen=True, order=True)
class Threshold:
    """One threshold: ε in ``queries`` or in ``percent`` of all attention; CallError for one that cannot hold."""

    excess: float
    unit: Unit = "queries"

    def __post_init__(self) -> None:
        check_excess(float(self.excess), self.unit)
        if self.unit == "mean" or (self.unit == "percent" and self.excess >= 100):
            reason = "as all attention is 100 percent, and a mean is percent / 100"
            raise CallError(f"excess {self.excess:g} in {self.unit} can never hold, {reason}")

    @property
    def place(self) -> Place:
        return (("excess", self.excess), ("unit", self.unit))


UNITS: tuple[Unit, ...] = ("queries", "percent")
THRESHOLDS = tuple(Threshold(excess, unit) for unit in UNITS for excess in (1.0, 2.0, 3.0, 5.0, 8.0))
EPSILON_STEP = 0.25
EPSILONS = np.arange(41) * EPSILON_STEP
"""ε of the ε curve: 0, ¼, ½ … 10. Multiplying by 4 is exact in binary: counts on this grid are those of Eq. 3."""
EPSILONS.flags.writeable = False


def least_column_sum(excess: float, tokens: int) -> float:
    """Return the column sum above which Eq. 3 holds on a canvas of so many tokens, 1 + ε(1 − 1/S)."""
    return 1 + excess * (1 - 1 / tokens)
