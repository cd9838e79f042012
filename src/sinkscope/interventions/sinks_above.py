"""Hiding every key whose excess is above a threshold (paper 1, Eq. 3), and the threshold for K keys on average."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.errors import CallError
from sinkscope.interventions.observed import Observed, Ranking
from sinkscope.interventions.ranking import excess_of, spread
from sinkscope.interventions.rule_context import RuleContext
from sinkscope.models import Model

BINS_PER_UNIT = 256
LOWEST = -8.0


@dataclass(frozen=True)
class HideSinksAbove(Observed):
    """Hides the sinks of Eq. 3: keys whose column exceeds the mean of the others by more than ``excess``.

    Source: paper 1, Eq. 3. With an ε from `calibrate_excess` it hides K sinks per head on average, which is how the
    ε₀, ε₁, ε₂ of the paper's text can be read.

    Attributes:
        excess: ε; infinite hides nothing.
        unit: of ε: ``queries`` worth of attention, or ``percent`` of all attention.
    """

    rule = "above:E"

    excess: float
    _: KW_ONLY
    unit: Literal["queries", "percent"] = "queries"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.excess >= 0:
            raise CallError(f"excess: expected a number from 0 upwards, found {self.excess}")
        most = 100 if self.unit == "percent" else 1 if self.decide == "last_row" else math.inf
        if most <= self.excess < math.inf:
            all_of_it = "all attention is 100 percent" if most == 100 else "a query's row adds up to 1"
            raise CallError(f"excess {self.excess:g} can never be exceeded, as {all_of_it}")

    @property
    def idle(self) -> bool:
        return self.excess == math.inf or super().idle

    def check_reach(self, longest: int) -> None:
        super().check_reach(longest)
        if self.unit == "queries" and longest <= self.excess:
            raise CallError(f"excess {self.excess:g} can never be exceeded on canvases of at most {longest} tokens")

    def choose(self, context: RuleContext) -> Tensor | None:
        ranking = self.rank(context)
        if ranking is None:
            return None
        above = (self.excess_of(ranking) > self.excess) & ranking.candidates
        return spread(above, context.call.query.shape[1])

    def excess_of(self, ranking: Ranking) -> Tensor:
        """Return the excess of every key in the rule's unit, [batch, group, key]."""
        values = ranking.values
        if self.unit == "percent":
            total = (values * ranking.real[:, None]).sum(-1, keepdim=True)
            values = 100 * values / total.clamp(min=1e-9)
        return excess_of(values, ranking.real)


@dataclass(frozen=True)
class _ExcessCount(HideSinksAbove):
    """Hides nothing; counts how often each excess occurs, and in how many heads."""

    found: dict[str, Any] = field(default_factory=dict, compare=False, kw_only=True)

    @property
    def idle(self) -> bool:
        return False

    def choose(self, context: RuleContext) -> Tensor | None:
        ranking = self.rank(context)
        if ranking is not None:
            bins = ((self.excess_of(ranking) - LOWEST) * BINS_PER_UNIT).floor().long().clamp(min=0)
            bins, candidates = (context.canvas.recorded(one) for one in (bins, ranking.candidates.expand_as(bins)))
            if self.heads is not None:
                each = context.call.query.shape[1] // bins.shape[1]  # heads that share a ranking
                mine = [head // each for layer, head in self.heads if layer == context.call.index]
                bins, candidates = bins[:, mine], candidates[:, mine]
            counts = bins[candidates].bincount().cpu()
            before = self.found.get("counts", counts.new_zeros(0))
            width = max(len(before), len(counts))
            self.found["counts"] = sum(torch.nn.functional.pad(one, (0, width - len(one))) for one in (before, counts))
            self.found["heads"] = self.found.get("heads", 0) + bins.shape[0] * bins.shape[1]
        return None


def calibrate_excess(
    model: Model | nn.Module, run: Callable[[], Any], sinks_per_head: float, **options: Any
) -> HideSinksAbove:
    """Return the rule whose ε ``sinks_per_head`` keys exceed on average, over steps, layers and heads of the rule.

    Only recorded rows count: of guidance the half with the prompt, of a batch the rows that have not ended.

    Args:
        model: from `load`, or a bare network.
        run: writes with the model, such as ``lambda: sinkscope.generate(model, prompts)``.
        sinks_per_head: how many keys shall be hidden on average.
        options: of `HideSinksAbove`.

    Raises:
        CallError: nothing that could be observed, or so many keys that ε would have to be negative.
    """
    rule = HideSinksAbove(0.0, **options)
    count = _ExcessCount(**{**vars(rule), "found": {}})
    with count(model):
        run()
    if not count.found:
        raise CallError("run: expected it to write at least two steps with the model, found none to learn from")
    above = count.found["counts"].flip(0).cumsum(0).flip(0) / count.found["heads"]  # keys per head from this bin on
    place = int((above - sinks_per_head).abs().argmin())
    excess = LOWEST + place / BINS_PER_UNIT
    if not sinks_per_head > 0 or excess < 0:
        raise CallError(f"sinks_per_head: expected so few that their excess is above 0, found {sinks_per_head:g}")
    return replace(rule, excess=excess)
