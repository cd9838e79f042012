"""Control: random keys that take as much attention away."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import check_count
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.random_keys import random_ranks
from sinkscope.interventions.top_sinks import SinkRule


@dataclass(frozen=True)
class MassMatchedKeys(SinkRule):
    """Control: hides random keys until they hold as much attention as the k sinks do in the step that loses it.

    The sinks are chosen by the step the rule goes by; what they and the random keys hold is measured in the running step,
    before anything is hidden, which costs a second sweep. Measured in the step before, a key chosen for what it held then
    would count for more than it takes away (five times, in the lab's autoregressive model behind ``decide="last_row"``).

    Keys are taken in random order, the last one only where it brings the sum nearer. Limit: where the other keys hold less
    than the sinks do, all of them are hidden and the match fails; `Effect.removed_share` shows it.

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

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = random_ranks(context, ranking, top, self.seed)
        others = ranking.candidates & ~top
        at_stake = self.at_stake(context)
        order = ranks.argsort(dim=-1)
        mass = (at_stake * others).gather(-1, order)
        nearer = mass.cumsum(-1) - mass / 2 < (at_stake * top).sum(-1, keepdim=True)
        return nearer.gather(-1, ranks) & others
