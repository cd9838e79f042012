"""Hiding fixed positions."""

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import Intervention


@dataclass(frozen=True)
class HidePositions(Intervention):
    """Hides fixed positions of the canvas from the first step on, whatever attention they receive.

    ``HidePositions(range(n))`` drops the oldest n tokens and leaves the others where they are.

    Attributes:
        positions: from 0, left padding not counted; those beyond the canvas are not there yet.
    """

    positions: Collection[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.positions
        good = isinstance(given, Collection) and not isinstance(given, str)
        if not good or any(not isinstance(one, int) or isinstance(one, bool) or one < 0 for one in given):
            raise CallError(f"positions: expected numbers from 0 upwards, such as (0, 5) or range(3), found {given!r}")
        object.__setattr__(self, "positions", tuple(sorted(set(given))))

    @property
    def idle(self) -> bool:
        return not self.positions or super().idle

    def choose(self, context: RuleContext) -> Tensor:
        return context.among(self.positions)[:, None]
