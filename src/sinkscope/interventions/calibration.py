"""One threshold that hides K sinks per head on average."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.sinks_above import HideSinksAbove
from sinkscope.models import Model

BINS_PER_UNIT = 256
LOWEST = -8.0


@dataclass(frozen=True)
class _Census(HideSinksAbove):
    """Hides nothing; counts how often which excess occurs, and how many heads were looked at."""

    found: dict[str, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def idle(self) -> bool:
        return False

    def choose(self, context: RuleContext) -> Tensor | None:
        ranking = self.rank(context)
        if ranking is not None:
            bins = ((self.excess_of(ranking) - LOWEST) * BINS_PER_UNIT).floor().long().clamp(min=0)
            counts = bins[ranking.candidates.expand_as(bins)].bincount().cpu()
            before = self.found.get("counts", counts.new_zeros(0))
            width = max(len(before), len(counts))
            self.found["counts"] = sum(torch.nn.functional.pad(one, (0, width - len(one))) for one in (before, counts))
            self.found["heads"] = self.found.get("heads", 0) + bins.shape[0] * bins.shape[1]
        return None


def calibrate_excess(model: Model | nn.Module, run: Callable[[], Any], sinks_per_head: float, **options: Any) -> HideSinksAbove:
    """The rule with the one ε above which ``sinks_per_head`` keys lie on average over steps, layers and heads of unhidden runs.

    Args:
        run: writes with the model, such as ``lambda: sinkscope.generate(model, prompts)``.
        options: of `HideSinksAbove`.

    Raises:
        CallError: nothing that could be observed, or so many keys that ε would have to be negative.
    """
    rule = HideSinksAbove(0.0, **options)
    census = _Census(**{**vars(rule), "found": {}})
    with census(model):
        run()
    if not census.found:
        raise CallError("run: expected it to write at least two steps with the model, found none to learn from")
    above = census.found["counts"].flip(0).cumsum(0).flip(0) / census.found["heads"]  # keys per head from this bin on
    place = int((above - sinks_per_head).abs().argmin())
    excess = LOWEST + place / BINS_PER_UNIT
    if not sinks_per_head > 0 or excess < 0:
        raise CallError(
            f"sinks_per_head: expected so few that their excess is positive, found {sinks_per_head:g}; "
            f"{float(above[int(-LOWEST * BINS_PER_UNIT)]) if len(above) > -LOWEST * BINS_PER_UNIT else 0:.2f} keys per head have one"
        )
    return replace(rule, excess=excess)
