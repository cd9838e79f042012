"""Hides the keys that receive least attention."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch

from sinkscope.interventions import Intervention, RuleContext


@dataclass(frozen=True)
class HideBottomKeys(Intervention):
    """Hides the k keys of every head that receive least attention, in the step before or in the running one."""

    rule = "bottom:K"

    k: int
    _: KW_ONLY
    observe: Literal["previous", "current"] = "previous"

    @property
    def idle(self) -> bool:
        return self.k == 0 or super().idle

    @property
    def waits(self) -> bool:
        return self.observe == "previous"

    def choose(self, context: RuleContext) -> torch.Tensor | None:
        seen = context.seen(self.observe, "local")
        if seen is None:  # the first step: nothing has been seen yet, so nothing is hidden
            return None
        candidates = context.candidates[:, None]  # no padding, and only what `keys=` allows
        columns = seen.columns.masked_fill(~candidates, torch.inf)
        lowest = columns.topk(min(self.k, columns.shape[-1]), largest=False).indices
        return torch.zeros_like(columns, dtype=torch.bool).scatter(-1, lowest, True) & candidates
