"""Rules that rank keys by the attention they have received."""

from abc import ABC
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.ranking import Scope, excess_of, pool, rank_of
from sinkscope.interventions.rule_context import Observation, RuleContext
from sinkscope.sinks.finding import EXCESS


@dataclass(frozen=True, eq=False)
class Ranking:
    """The keys of one layer in order; a ``group`` is a head, or the heads that share a ranking.

    Attributes:
        values: [batch, group, key], what the keys are ranked by: column sums, or the newest query's row.
        columns: [batch, group, key], column sums in queries' worth of attention.
        candidates: bool [batch, 1, key], keys that may be chosen and were seen.
        sinks: bool [batch, group, key], whether Eq. 3 with ε = 3 holds for the column sums.
        real: bool [batch, key], keys that were seen, padding left out.
    """

    values: Tensor
    columns: Tensor
    candidates: Tensor
    sinks: Tensor
    real: Tensor

    def ranks(self, most: int) -> Tensor:
        """Return the rank of each key, int64 [batch, group, key]: 0 for the largest value, exact below ``most``."""
        return rank_of(self.values, self.candidates, most)


@dataclass(frozen=True, kw_only=True)
class Observed(Intervention, ABC):
    """A rule that goes by the attention of the step before, or of the running step before anything is hidden in it.

    Attributes:
        observe: ``previous``: step 0 is left alone (paper 1). ``current``: every layer is measured before it hides,
            which costs a second sweep; needed where there is only one step (likelihoods). In a causal model that reads
            several tokens at once, all of them lose the keys.
        measured: ``local``: the layer's own queries and keys, normalised without the hiding. ``hidden``: with the
            hiding; a hidden column sums to 0, so the next step spares it and the rule alternates between two sets.
            ``clean``: from one more forward call in every step, with nothing hidden in any layer; a causal model then
            reads all tokens so far again.
        decide: ``columns``, or the ``last_row`` of the newest query (paper 1 decides so for Llama).
        scope: ``head``: each query head ranks for itself; ``kv_head``, ``layer``: the mean over the heads that share
            keys, or over all of them, decides for all.
    """

    observe: Literal["previous", "current"] = "previous"
    measured: Literal["local", "hidden", "clean"] = "local"
    decide: Literal["columns", "last_row"] = "columns"
    scope: Scope = "head"

    @property
    def waits(self) -> bool:
        return self.observe == "previous"

    @property
    def unhidden_pass(self) -> bool:
        return self.measured == "clean"

    def criterion(self, found: Observation, causal: bool) -> tuple[Tensor, Scope]:
        return (found.last_row if self.decide == "last_row" else found.columns), self.scope

    def rank(self, context: RuleContext) -> Ranking | None:
        """Return the keys of this layer in order; None before anything has been observed."""
        found = context.seen(self.observe, self.measured)
        if found is None:
            return None
        kv_heads = context.call.key.shape[1]
        known = context.real.clone()
        known[:, found.keys :] = False
        columns = pool(found.columns, self.scope, kv_heads)
        last_row = pool(found.last_row, self.scope, kv_heads)
        values = columns if self.decide == "columns" else last_row
        candidates = (context.candidates & known)[:, None]
        sinks = excess_of(columns, known) > EXCESS
        return Ranking(values, columns, candidates, sinks & known[:, None], known)

    def at_stake(self, context: RuleContext) -> Tensor:
        """Return the attention that hiding each key takes away in the running step, [batch, group, key]; a sweep more.

        It is the key's column, or its entry in the newest query's row where only that query loses the key.
        """
        found = context.seen("current", self.measured)
        assert found is not None
        only_newest = context.causal and context.call.query.shape[2] == 1
        return pool(found.last_row if only_newest else found.columns, self.scope, context.call.key.shape[1])
