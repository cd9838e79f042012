"""Rules that look at no attention: fixed positions, a window, the network's own sink token."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.intervention import Composed, Intervention, compose, positions_of
from sinkscope.interventions.observed import HideTopSinks
from sinkscope.interventions.rule_context import RuleContext


@dataclass(frozen=True)
class HidePositions(Intervention):
    """Hides fixed positions of the canvas from the first step on, whatever attention they receive.

    Attributes:
        positions: from 0, left padding not counted; those beyond the canvas are not there yet.
    """

    rule = "position:P"
    observing = False

    positions: Collection[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "positions", positions_of("positions", self.positions))

    @property
    def idle(self) -> bool:
        return not self.positions or super().idle

    def choose(self, context: RuleContext) -> Tensor:
        return context.among(self.positions)[:, None]


def drop_past(count: int, *, keep_first: int = 0, hide_future_sinks: int = 0) -> Composed:
    """Return a rule that drops the oldest tokens, which keep their places (paper 1, §5.3, long context).

    Args:
        count: how many of the oldest tokens go, the first included.
        keep_first: how many of the very first stay all the same (an autoregressive model's sinks).
        hide_future_sinks: how many of the top sinks among the masked positions of a diffusion model go too.
    """
    if not 0 <= keep_first <= count:
        raise CallError(f"keep_first: expected 0 to count, {count}, found {keep_first}")
    future = [HideTopSinks(hide_future_sinks, keys="masked")] if hide_future_sinks else []
    return compose(HidePositions(range(keep_first, count)), *future)


@dataclass(frozen=True)
class KeepWindow(Intervention):
    """Every query sees the first ``sinks`` tokens and the ``recent`` ones nearest to it, and nothing else.

    Source: StreamingLLM (arXiv 2309.17453), which keeps 4 first tokens. A causal model's query sees itself and the
    ``recent`` − 1 tokens before it; a bidirectional one also as many after it (our choice: the paper has causal models
    only). Rotations stay those of the whole text, where StreamingLLM numbers the kept tokens anew.

    Attributes:
        sinks: tokens kept at the start.
        recent: width of the window, the query itself included; at least 1.
    """

    rule = "window:SINKS+RECENT"
    observing = False

    sinks: int
    recent: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent < 1:
            raise CallError("recent: expected at least 1, a query sees itself, found 0")

    def choose(self, context: RuleContext) -> Tensor:
        queries, keys = context.call.query.shape[2], context.call.keys
        place = torch.arange(keys, device=context.real.device)
        beyond = (place[keys - queries :, None] - place).abs() >= self.recent
        first = (context.real.long().cumsum(-1) - 1) < self.sinks
        return (beyond & (context.real & ~first)[:, None])[:, None]


@dataclass(frozen=True)
class HideSinkToken(Intervention):
    """No query sees the network's own sink token, all of them where there are several, or its learned logit.

    The text keeps its positions and attends to itself alone. ``keys`` has nothing to choose among and is refused.
    """

    rule = "sink-token"
    observing = False
    takes_own = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys is not None:
            raise CallError(f"keys: expected none, as a sink token is no key of the canvas, found {self.keys!r}")

    def choose(self, context: RuleContext) -> Tensor:
        if context.call.own is None:
            raise CallError(f"expected a sink token or a learned logit to hide, found none in {context.call.name}")
        return torch.zeros(1, 1, context.call.keys, dtype=torch.bool, device=context.real.device)
