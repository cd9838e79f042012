"""Control: as many keys drawn at random."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import check_count
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.ranking import rank_of
from sinkscope.interventions.top_sinks import SinkRule


def random_ranks(context: RuleContext, ranking: Ranking, top: Tensor, seed: int, most: int | None = None) -> Tensor:
    """The keys outside ``top`` in random order, those that are sinks by Eq. 3 last: int64 [batch, group, key], exact below ``most``."""
    drawn = context.draw(seed, top.shape[1])
    return rank_of(drawn + (~ranking.sinks).float(), ranking.candidates & ~top, most)


@dataclass(frozen=True)
class RandomKeys(SinkRule):
    """Control: where `HideTopSinks` hides k sinks, hides as many random keys, drawn anew in every layer, head and step.

    Drawn from the visible keys that are no sinks; where there are not enough of those, also from sinks outside the top k.

    Attributes:
        seed: the draw is a function of it, the prompt, the step and the layer, so a batch draws what its prompts draw alone.
    """

    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("seed", self.seed)

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = random_ranks(context, ranking, top, self.seed, self.k)
        return (ranks < top.sum(-1, keepdim=True)) & ranking.candidates & ~top
