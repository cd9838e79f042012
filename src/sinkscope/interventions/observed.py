"""Rules that rank keys by the attention they have received: the top k of every head, or those above a threshold; and
controls, which hide as many keys, but others: what they break is not due to sinks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sinkscope.errors import CallError
from sinkscope.interventions.intervention import Intervention
from sinkscope.interventions.rule_context import Observation, RuleContext, Scope, excess_of, pool, rank_of, spread
from sinkscope.models import Model
from sinkscope.sinks.finding import EXCESS

BINS_PER_UNIT = 256
LOWEST = -8.0


@dataclass(frozen=True, eq=False)
class Ranking:
    """The keys of one layer in order; a ``group`` is a head, or the heads that share a ranking."""

    values: Tensor  # [batch, group, key], column sums, or the newest query's row
    candidates: Tensor  # bool [batch, 1, key], keys that may be chosen and were seen
    columns: Tensor  # [batch, group, key], column sums
    real: Tensor  # bool [batch, key], keys that were seen, padding left out

    @cached_property
    def sinks(self) -> Tensor:
        """Whether Eq. 3 with ε = 3 holds for the column sums, bool [batch, group, key]."""
        return (excess_of(self.columns, self.real) > EXCESS) & self.real[:, None]


@dataclass(frozen=True, kw_only=True)
class Observed(Intervention, ABC):
    """A rule that goes by the attention of the step before, or of the running step before anything is hidden in it.

    Attributes:
        observe: ``previous``: step 0 is left alone (paper 1). ``current``: every layer is measured before it hides, a
            second sweep; needed where there is only one step (likelihoods).
        measured: ``local``: the layer's own queries and keys, normalised without the hiding. ``hidden``: with it, so
            that the next step spares a hidden column. ``clean``: from one more forward call in every step, with nothing
            hidden in any layer; a causal model then reads all tokens so far again.
        decide: ``columns``, or the ``last_row`` of the newest query (paper 1 decides so for Llama).
        scope: ``head``: each query head ranks for itself; ``kv_head``, ``layer``: the mean over heads decides for all.
    """

    observe: Literal["previous", "current"] = "previous"
    measured: Literal["local", "hidden", "clean"] = "local"
    decide: Literal["columns", "last_row"] = "columns"
    scope: Scope = "head"

    @property
    def waits(self) -> bool:
        return self.observe == "previous"

    @property
    def looks_back(self) -> Collection[str]:
        return (self.measured,) if self.observe == "previous" else ()

    @property
    def unhidden_pass(self) -> bool:
        return self.measured == "clean"

    def criterion(self, found: Observation, causal: bool) -> tuple[Tensor, Scope]:
        return (found.last_row if self.decide == "last_row" else found.columns), self.scope

    def choose(self, context: RuleContext) -> Tensor | None:
        found = context.seen(self.observe, self.measured)
        if found is None:
            return None
        kv_heads, keys = context.call.key.shape[1], context.call.keys
        known, candidates = context.real, context.candidates
        if found.keys < keys:
            known = known & (torch.arange(keys, device=known.device) < found.keys)
            candidates = candidates & known
        columns = pool(found.columns, self.scope, kv_heads)
        values = columns if self.decide == "columns" else pool(found.last_row, self.scope, kv_heads)
        chosen = self.choose_ranked(context, Ranking(values, candidates[:, None], columns, known))
        return None if chosen is None else spread(chosen, context.call.query.shape[1])

    @abstractmethod
    def choose_ranked(self, context: RuleContext, ranking: Ranking) -> Tensor | None:
        """Return the keys to take away in one layer of one step, bool [batch, group, key]; None for none."""


@dataclass(frozen=True)
class SinkRule(Observed, ABC):
    """The base of `HideTopSinks` and its controls: ``k`` keys a head, with ``only_sinks`` as many as are by Eq. 3."""

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

    def choose_ranked(self, context: RuleContext, ranking: Ranking) -> Tensor:
        if self.k >= (shortest := min(context.canvas.lengths)):
            raise CallError(f"k: expected fewer keys than the canvas holds, found {self.k} of {shortest}")
        top = (rank_of(ranking.values, ranking.candidates, self.k) < self.k) & ranking.candidates
        if self.only_sinks:
            top = top & ranking.sinks
        return self.pick(context, ranking, top)

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


@dataclass(frozen=True)
class HideSinksAbove(Observed):
    """Hides the sinks of Eq. 3 (paper 1): keys whose column exceeds the mean of the others by more than ``excess``.

    ε is in ``unit``, ``queries`` or ``percent``; infinite hides nothing. `calibrate_excess` finds one that hides K
    sinks a head on average, as the paper's ε₀, ε₁, ε₂ can be read.
    """

    rule = "above:E"

    excess: float
    _: KW_ONLY
    unit: Literal["queries", "percent"] = "queries"

    @property
    def idle(self) -> bool:
        return self.excess == math.inf or super().idle

    def choose_ranked(self, context: RuleContext, ranking: Ranking) -> Tensor | None:
        return (self.excess_of(ranking) > self.excess) & ranking.candidates

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

    idle = waits = False  # type: ignore[assignment]
    on_host = True

    def choose_ranked(self, context: RuleContext, ranking: Ranking) -> None:
        bins = ((self.excess_of(ranking) - LOWEST) * BINS_PER_UNIT).floor().long().clamp(min=0)
        bins, candidates = (context.canvas.recorded(one) for one in (bins, ranking.candidates.expand_as(bins)))
        if self.heads is not None:
            each = context.call.query.shape[1] // bins.shape[1]  # heads that share a ranking
            mine = [head // each for layer, head in self.heads if layer == context.call.index]
            bins, candidates = bins[:, mine], candidates[:, mine]
        counts = bins[candidates].bincount().cpu()
        before = self.found.get("counts", counts.new_zeros(0))
        width = max(len(before), len(counts))
        self.found["counts"] = sum(pad(one, (0, width - len(one))) for one in (before, counts))
        self.found["heads"] = self.found.get("heads", 0) + bins.shape[0] * bins.shape[1]


def calibrate_excess(
    model: Model | nn.Module, run: Callable[[], Any], sinks_per_head: float, **options: Any
) -> HideSinksAbove:
    """Return the rule whose ε ``sinks_per_head`` keys exceed on average, over steps, layers and heads of the rule.

    ``run`` writes with the model, such as ``lambda: sinkscope.generate(model, prompts)``; ``options`` are the rule's.
    """
    rule = HideSinksAbove(0.0, **options)
    count = _ExcessCount(**{**vars(rule), "found": {}})
    with count(model):
        run()
    above = count.found["counts"].flip(0).cumsum(0).flip(0) / count.found["heads"]  # keys per head from this bin on
    place = int((above - sinks_per_head).abs().argmin())
    return replace(rule, excess=LOWEST + place / BINS_PER_UNIT)


@dataclass(frozen=True)
class NextRanks(SinkRule):
    """Control: hides the keys of ranks k+1 … 2k; with ``only_sinks`` as many of them as `HideTopSinks` would hide."""

    rule = "ranks:K"

    @property
    def least_tokens(self) -> int:
        return 2 * self.k + 1

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = rank_of(ranking.values, ranking.candidates, 2 * self.k)
        return (ranks >= self.k) & (ranks < self.k + top.sum(-1, keepdim=True)) & ranking.candidates


@dataclass(frozen=True)
class RandomControl(SinkRule, ABC):
    """The base of the controls that draw keys at random, by ``seed``, prompt, step and layer, in a batch as alone."""

    _: KW_ONLY
    seed: int = 0

    def random_ranks(self, context: RuleContext, ranking: Ranking, others: Tensor, most: int | None = None) -> Tensor:
        """Return ``others``, bool [batch, group, key], in random order, sinks by Eq. 3 last: int64 of that shape."""
        return rank_of(context.draw(self.seed, others.shape[1]) + ~ranking.sinks, others, most)


@dataclass(frozen=True)
class RandomKeys(RandomControl):
    """Control: where `HideTopSinks` hides k sinks, hides as many random keys, drawn anew in every layer, head and step
    from the visible keys that are no sinks; where those are too few, also from sinks outside the top k.
    """

    rule = "random:K"

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        others = ranking.candidates & ~top
        return (self.random_ranks(context, ranking, others, self.k) < top.sum(-1, keepdim=True)) & others


@dataclass(frozen=True)
class MassMatchedKeys(RandomControl):
    """Control: hides random keys until they hold as much attention as the k sinks do, in the step that loses it.

    The last key counts only where it brings the sum nearer. Limit: where the other keys hold less than the sinks do,
    all of them are hidden and the match fails; `Effect.removed_share` shows it.
    """

    rule = "mass:K"
    most = None  # type: ignore[assignment]

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        found, call = context.seen("current", self.measured), context.call
        assert found is not None
        only_newest = context.causal and call.query.shape[2] == 1
        at_stake = pool(found.last_row if only_newest else found.columns, self.scope, call.key.shape[1])
        others = ranking.candidates & ~top
        ranks = self.random_ranks(context, ranking, others)
        order = ranks.argsort(dim=-1)
        mass = (at_stake * others).gather(-1, order)
        nearer = mass.cumsum(-1) - mass / 2 < (at_stake * top).sum(-1, keepdim=True)
        return nearer.gather(-1, ranks) & others


@dataclass(frozen=True)
class RowMatchedKeys(RandomControl):
    """Control: hides random keys that hold as much attention as the k sinks do, of the queries that write.

    These are ``queries``, or those from whose outputs a token may be committed in this step; in a likelihood the
    answer's. Keys are taken in random order, sinks by Eq. 3 last, while the sum stays below that of the sinks; then the
    one key that brings it nearest. Limits: which queries commit is known only after the step, and the other keys may
    hold less; `Effect.removed_share_committed` shows both.
    """

    rule = "rowmass:K"
    most = None  # type: ignore[assignment]

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        rows = context.committing
        if self.queries is not None or rows is None:
            if self.queries is None and not context.canvas.answers:
                raise CallError("rowmass: this call has neither tokens to commit nor an answer; name queries=")
            rows = context.among(self.queries or "answer")[:, -context.call.query.shape[2] :]
        held = pool(context.received_from(rows), self.scope, context.call.key.shape[1])
        others, aim = ranking.candidates & ~top, (held * top).sum(-1, keepdim=True)
        ranks = self.random_ranks(context, ranking, others)
        order = ranks.argsort(dim=-1)
        fitting = others & (held > 0) & (held <= aim)
        below = ((held * fitting).gather(-1, order).cumsum(-1) <= aim).gather(-1, ranks) & fitting
        gap = aim - (held * below).sum(-1, keepdim=True)
        left = others & ~below
        last = left & ~ranking.sinks
        last = torch.where(last.any(-1, keepdim=True), last, left)
        miss, nearest = (held - gap).abs().masked_fill(~last, torch.inf).min(-1, keepdim=True)
        return below.scatter(-1, nearest, below.gather(-1, nearest) | (miss < gap))


@dataclass(frozen=True)
class PersistentRandomKeys(RandomControl):
    """Control: hides one random key for each of the k sinks, the same one as long as that sink stays in the top k and
    the key is no sink. It separates losing a key for long from losing one for a step.
    """

    rule = "persistent:K"

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        others = ranking.candidates & ~top
        free = others & ~ranking.sinks
        # sink position → its key, −1 for none
        stand_in = context.memory.get("stand_in", torch.zeros(*top.shape[:2], 0, dtype=torch.long, device=top.device))
        stand_in = pad(stand_in, (0, top.shape[-1] - stand_in.shape[-1]), value=-1)
        kept = top & (stand_in >= 0) & free.gather(-1, stand_in.clamp(min=0))
        stand_in = stand_in.masked_fill(~kept, -1)
        others = others & ~_marked(stand_in)
        needy = top & ~kept
        drawn = self.random_ranks(context, ranking, others)
        in_line = needy.cumsum(-1) - 1
        order = drawn.argsort(dim=-1)
        enough = in_line < others.sum(-1, keepdim=True)
        stand_in = torch.where(needy & enough, order.gather(-1, in_line.clamp(min=0)), stand_in)
        context.memory["stand_in"] = stand_in
        return _marked(stand_in)


def _marked(stand_in: Tensor) -> Tensor:
    marks = torch.zeros(*stand_in.shape[:2], stand_in.shape[-1] + 1, dtype=torch.bool, device=stand_in.device)
    return marks.scatter_(-1, stand_in + 1, True)[..., 1:]


@dataclass(frozen=True)
class SameClassKeys(RandomControl):
    """Control: hides for each of the k sinks a random key whose token is of the same class, drawn anew in every step.

    Limit: a sink alone in its class (a first token, often) has no match; `Effect.keys_per_head` shows it. ``classify``
    gives a token id's class, by default `class_in` with the model's tokenizer.
    """

    rule = "class:K"
    on_host = True

    _: KW_ONLY
    classify: Callable[[int], str] | None = None

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        chosen = torch.zeros_like(top)
        drawn = context.draw(self.seed, top.shape[1]) + (~ranking.sinks).float()
        for where in context.classes(self.classify).values():
            alike = where[:, None]
            others = ranking.candidates & ~top & alike
            chosen |= (rank_of(drawn, others, self.k) < (top & alike).sum(-1, keepdim=True)) & others
        return chosen
