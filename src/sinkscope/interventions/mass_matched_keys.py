"""Control: random keys that take as much attention away."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from sinkscope.interventions.hiding import Look
from sinkscope.interventions.intervention import check_count
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.random_keys import random_ranks
from sinkscope.interventions.top_sinks import SinkRule


@dataclass(frozen=True)
class MassMatchedKeys(SinkRule):
    """Control: hides random keys until they hold as much attention as the k sinks do.

    How much is read off the attention that the rule goes by, so for ``observe="previous"`` it is that of the step before.
    Columns change little from step to step; with ``decide="last_row"`` the next query wants much less of the last one's top
    key, random keys hold what they held, and the match fails (in the lab's model five times as much is removed).

    Keys are taken in random order, the last one only where it brings the sum nearer. Limit: where the other keys hold
    less than the sinks do, all of them are hidden and the match fails; `Effect.removed_share` shows it.

    Attributes:
        seed: see `RandomKeys`.
    """

    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("seed", self.seed)

    @property
    def most(self) -> int | None:
        return None

    def pick(self, look: Look, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = random_ranks(look, ranking, top, self.seed)
        others = ranking.candidates & ~top
        aim = (ranking.at_stake * top).sum(-1, keepdim=True)
        order = ranks.argsort(dim=-1)
        mass = (ranking.at_stake * others).gather(-1, order)
        nearer = mass.cumsum(-1) - mass / 2 < aim
        return nearer.gather(-1, ranks) & others
