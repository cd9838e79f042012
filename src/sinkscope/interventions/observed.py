"""Rules that go by attention they have seen: which step of it, how it was measured, what decides, which heads share a ranking."""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sinkscope.interventions.hiding import Observation, RuleContext
from sinkscope.interventions.intervention import Intervention, check_choice
from sinkscope.interventions.ranking import SCOPES, Scope, excess_of, pool, rank_of

SINK_EXCESS = 3.0  # Eq. 3 of paper 1, in queries' worth of attention


@dataclass(frozen=True)
class Ranking:
    """The keys of one layer in order; ``group`` is a head, or the heads that share a ranking.

    Attributes:
        values: [batch, group, key], what they are ranked by: column sums, or the newest query's row.
        columns: [batch, group, key], column sums in queries' worth of attention.
        candidates: bool [batch, 1, key], keys that may be chosen and were seen.
        sinks: bool [batch, group, key], Eq. 3 with ε = 3 on the column sums.
        real: bool [batch, key], keys that were seen, padding left out.
    """

    values: Tensor
    columns: Tensor
    candidates: Tensor
    sinks: Tensor
    real: Tensor

    def ranks(self, most: int) -> Tensor:
        """int64 [batch, group, key], 0 for the largest value; exact below ``most``."""
        return rank_of(self.values, self.candidates, most)


@dataclass(frozen=True, kw_only=True)
class Observed(Intervention, ABC):
    """A rule that goes by the attention of the step before, or of the running step before anything is hidden.

    Attributes:
        observe: ``previous``: step 0 is left alone (paper 1). ``current``: every layer is measured before it hides,
            which costs a second sweep; needed where there is only one step (likelihoods). A causal model that reads
            several tokens at once hides from all of them.
        measured: ``local``: the layer's own queries and keys, normalised without the hiding. ``hidden``: as it took
            effect; a hidden column sums to 0, so the next step spares it and the rule flips between two sets.
            ``clean``: a forward call of its own in every step, with nothing hidden in any layer; a causal model then
            reads all tokens so far anew.
        decide: ``columns``, or the ``last_row`` of the newest query (paper 1 decides so for Llama).
        scope: ``head``: each query head ranks for itself; ``kv_head``, ``layer``: the mean over the heads that share
            keys, or over all of them, decides for all.
    """

    observe: Literal["previous", "current"] = "previous"
    measured: Literal["local", "hidden", "clean"] = "local"
    decide: Literal["columns", "last_row"] = "columns"
    scope: Scope = "head"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("observe", self.observe, ("previous", "current"))
        check_choice("measured", self.measured, ("local", "hidden", "clean"))
        check_choice("decide", self.decide, ("columns", "last_row"))
        check_choice("scope", self.scope, SCOPES)

    @property
    def observing(self) -> bool:
        """Also for the current step, as a causal model's columns are running sums."""
        return True

    @property
    def waits(self) -> bool:
        return self.observe == "previous"

    @property
    def unhidden_pass(self) -> bool:
        return self.measured == "clean"

    def criterion(self, seen: Observation, causal: bool) -> tuple[Tensor, Scope]:
        return (seen.last_row if self.decide == "last_row" else seen.columns), self.scope

    def rank(self, context: RuleContext) -> Ranking | None:
        """The keys of this layer in order; None as long as nothing has been observed."""
        seen = context.seen(self.observe, self.measured)
        if seen is None:
            return None
        kv_heads = context.call.key.shape[1]
        known = context.real.clone()
        known[:, seen.keys :] = False
        columns = pool(seen.columns, self.scope, kv_heads)
        last_row = pool(seen.last_row, self.scope, kv_heads)
        values = columns if self.decide == "columns" else last_row
        candidates = (context.candidates & known)[:, None]
        sinks = excess_of(columns, known) > SINK_EXCESS
        return Ranking(values, columns, candidates, sinks & known[:, None], known)

    def at_stake(self, context: RuleContext) -> Tensor:
        """Attention that hiding a key takes away in the running step: its column, or the newest query's row where only that one loses it.

        Costs a sweep of its own. [batch, group, key].
        """
        seen = context.seen("current", self.measured)
        assert seen is not None
        only_newest = context.causal and context.call.query.shape[2] == 1
        return pool(seen.last_row if only_newest else seen.columns, self.scope, context.call.key.shape[1])
