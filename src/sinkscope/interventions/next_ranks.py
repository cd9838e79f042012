"""Control: the keys that come next."""

from dataclasses import dataclass

from torch import Tensor

from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.top_sinks import SinkRule


@dataclass(frozen=True)
class NextRanks(SinkRule):
    """Control: hides the keys of ranks k+1 … 2k, with ``only_sinks`` as many as `HideTopSinks` would hide."""

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = ranking.ranks(2 * self.k)
        return (ranks >= self.k) & (ranks < self.k + top.sum(-1, keepdim=True)) & ranking.candidates
