"""Rules that look at no attention: fixed positions, a window, the network's own sink token."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.intervention import Intervention, positions_of
from sinkscope.interventions.rule_context import RuleContext


@dataclass(frozen=True)
class HidePositions(Intervention):
    """Hides fixed positions (from 0, padding not counted) from the first step on, whatever attention they receive."""

    rule = "position:P"
    observing = False

    positions: Collection[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "positions", positions_of(self.positions))

    @property
    def idle(self) -> bool:
        return not self.positions or super().idle

    def choose(self, context: RuleContext) -> Tensor:
        return context.among(self.positions)[:, None]


@dataclass(frozen=True)
class KeepWindow(Intervention):
    """Every query sees the first ``sinks`` tokens and the ``recent`` ones nearest to it (causal: before it).

    Source: StreamingLLM (arXiv 2309.17453), which keeps 4 first tokens of causal models and numbers positions anew,
    where rotations here stay those of the whole text.
    """

    rule = "window:SINKS+RECENT"
    observing = False

    sinks: int
    recent: int

    def choose(self, context: RuleContext) -> Tensor:
        queries, keys = context.call.query.shape[2], context.call.keys
        place = torch.arange(keys, device=context.real.device)
        beyond = (place[keys - queries :, None] - place).abs() >= self.recent
        first = (context.real.long().cumsum(-1) - 1) < self.sinks
        return (beyond & (context.real & ~first)[:, None])[:, None]


@dataclass(frozen=True)
class HideSinkToken(Intervention):
    """No query sees the network's own sink tokens, or its learned logit; ``keys`` has nothing to choose among."""

    rule = "sink-token"
    observing = False
    takes_own = True

    def choose(self, context: RuleContext) -> Tensor:
        if context.call.own is None:
            raise CallError(f"expected a sink token or a learned logit to hide, found none in {context.call.name}")
        return torch.zeros(1, 1, context.call.keys, dtype=torch.bool, device=context.real.device)
