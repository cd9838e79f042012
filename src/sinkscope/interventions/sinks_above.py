"""Hiding every key whose excess is above a threshold (paper 1, Eq. 3)."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import check_choice
from sinkscope.interventions.observed import Observed, Ranking
from sinkscope.interventions.ranking import excess_of, spread


@dataclass(frozen=True)
class HideSinksAbove(Observed):
    """Hides the sinks of Eq. 3: keys whose column exceeds the mean of the others by more than ``excess``.

    Source: paper 1, Eq. 3. With an ε from `calibrate_excess` it hides K sinks per head on average, which is how the
    ε₀, ε₁, ε₂ of the paper's text can be read.

    Attributes:
        excess: ε; infinite hides nothing.
        unit: of ε: ``queries`` worth of attention, or ``percent`` of all of it.
    """

    excess: float
    _: KW_ONLY
    unit: Literal["queries", "percent"] = "queries"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("unit", self.unit, ("queries", "percent"))
        if not isinstance(self.excess, int | float) or isinstance(self.excess, bool) or not self.excess >= 0:
            raise CallError(f"excess: expected a number from 0 upwards, found {self.excess!r}")
        if self.decide == "last_row" and self.unit == "queries" and 1 <= self.excess < math.inf:
            raise CallError(
                f"excess {self.excess:g} of one query's row can never be reached, as a row adds up to 1; "
                "use unit='percent' or decide='columns'"
            )

    @property
    def idle(self) -> bool:
        return self.excess == math.inf or super().idle

    def choose(self, context: RuleContext) -> Tensor | None:
        ranking = self.rank(context)
        if ranking is None:
            return None
        above = (self.excess_of(ranking) > self.excess) & ranking.candidates
        return spread(above, context.call.query.shape[1])

    def excess_of(self, ranking: Ranking) -> Tensor:
        """Excess of every key in the rule's unit, [batch, group, key]."""
        values = ranking.values
        if self.unit == "percent":
            total = (values * ranking.real[:, None]).sum(-1, keepdim=True)
            values = 100 * values / total.clamp(min=1e-9)
        return excess_of(values, ranking.real)
