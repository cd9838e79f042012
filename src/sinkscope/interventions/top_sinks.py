"""Hiding the keys that receive most attention (paper 1, Table 1)."""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.observed import Observed, Ranking
from sinkscope.interventions.ranking import spread
from sinkscope.interventions.rule_context import RuleContext


@dataclass(frozen=True)
class SinkRule(Observed, ABC):
    """The base of the rule that hides the top k keys of every head, and of its controls, which hide as many others
    instead.

    Attributes:
        k: how many keys per head; 0 hides nothing.
        only_sinks: of the top k, only those that are sinks by Eq. 3 (ε = 3 on column sums). Deep heads have one or two.
    """

    control = True

    k: int
    _: KW_ONLY
    only_sinks: bool = False

    @property
    def most(self) -> int | None:
        return self.k

    @property
    def least_tokens(self) -> int:
        return self.k + 1

    @property
    def idle(self) -> bool:
        return self.k == 0 or super().idle

    def choose(self, context: RuleContext) -> Tensor | None:
        ranking = self.rank(context)
        if ranking is None:
            return None
        if self.k >= context.shortest:
            raise CallError(f"k: expected fewer keys than the canvas holds, found {self.k} of {context.shortest}")
        top = (ranking.ranks(self.k) < self.k) & ranking.candidates
        if self.only_sinks:
            top = top & ranking.sinks
        return spread(self.pick(context, ranking, top), context.call.query.shape[1])

    @abstractmethod
    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        """Return the keys to hide, bool [batch, group, key]; ``top`` are those that `HideTopSinks` would hide."""


@dataclass(frozen=True)
class HideTopSinks(SinkRule):
    """Hides the k keys of every head that receive most attention; ties go to the lower position.

    Source: paper 1 (arXiv 2510.15731), Table 1: from the map of the step before, per layer and head, for all queries.
    """

    rule = "top:K"
    control = False

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        return top
