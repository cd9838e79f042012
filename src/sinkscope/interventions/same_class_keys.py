"""Control: other tokens of the sinks' own kind."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import check_count
from sinkscope.interventions.observed import Ranking
from sinkscope.interventions.ranking import rank_of
from sinkscope.interventions.top_sinks import SinkRule


@dataclass(frozen=True)
class SameClassKeys(SinkRule):
    """Control: hides for each of the k sinks a random key whose token is of the same class, drawn anew in every step.

    Separates being a sink from being a newline. Limit: a sink alone in its class (a first token, often) has no match,
    and fewer keys are hidden; `Effect.keys_per_head` shows it.

    Attributes:
        seed: see `RandomKeys`.
        classify: token id → name of its class; when None, `class_in` with the model's tokenizer.
    """

    _: KW_ONLY
    seed: int = 0
    classify: Callable[[int], str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("seed", self.seed)

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        chosen = torch.zeros_like(top)
        drawn = context.draw(self.seed, top.shape[1]) + (~ranking.sinks).float()
        for where in context.classes(self.classify).values():
            alike = where[:, None]
            others = ranking.candidates & ~top & alike
            ranks = rank_of(drawn, others, self.k)
            chosen |= (ranks < (top & alike).sum(-1, keepdim=True)) & others
        return chosen
