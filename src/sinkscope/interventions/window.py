"""Keeping the first tokens and a window (StreamingLLM)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import Intervention, check_count


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

    sinks: int
    recent: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("sinks", self.sinks)
        check_count("recent", self.recent)
        if self.recent < 1:
            raise CallError("recent: expected at least 1, a query sees itself, found 0")

    def choose(self, context: RuleContext) -> Tensor:
        queries, keys = context.call.query.shape[2], context.call.keys
        place = torch.arange(keys, device=context.real.device)
        beyond = (place[keys - queries :, None] - place).abs() >= self.recent
        first = (context.real.long().cumsum(-1) - 1) < self.sinks
        return (beyond & (context.real & ~first)[:, None])[:, None]
