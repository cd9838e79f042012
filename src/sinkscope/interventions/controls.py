"""Controls: rules that hide as many keys as `HideTopSinks` would, but others. What they break is not due to sinks."""

from abc import ABC
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.errors import CallError
from sinkscope.interventions.observed import Ranking, SinkRule
from sinkscope.interventions.ranking import pool, rank_of
from sinkscope.interventions.rule_context import RuleContext


@dataclass(frozen=True)
class NextRanks(SinkRule):
    """Control: hides the keys of ranks k+1 … 2k; with ``only_sinks`` as many of them as `HideTopSinks` would hide."""

    rule = "ranks:K"

    @property
    def least_tokens(self) -> int:
        return 2 * self.k + 1

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = ranking.ranks(2 * self.k)
        return (ranks >= self.k) & (ranks < self.k + top.sum(-1, keepdim=True)) & ranking.candidates


@dataclass(frozen=True)
class RandomControl(SinkRule, ABC):
    """The base of the controls that draw keys at random, by ``seed``, prompt, step and layer, in a batch as alone."""

    _: KW_ONLY
    seed: int = 0

    def random_ranks(self, context: RuleContext, ranking: Ranking, top: Tensor, most: int | None = None) -> Tensor:
        """Return the keys outside ``top`` in random order, sinks by Eq. 3 last: int64 [batch, group, key]."""
        drawn = context.draw(self.seed, top.shape[1])
        return rank_of(drawn + (~ranking.sinks).float(), ranking.candidates & ~top, most)


@dataclass(frozen=True)
class RandomKeys(RandomControl):
    """Control: where `HideTopSinks` hides k sinks, hides as many random keys, drawn anew in every layer, head and step
    from the visible keys that are no sinks; where those are too few, also from sinks outside the top k.
    """

    rule = "random:K"

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks = self.random_ranks(context, ranking, top, self.k)
        return (ranks < top.sum(-1, keepdim=True)) & ranking.candidates & ~top


@dataclass(frozen=True)
class MassMatchedKeys(RandomControl):
    """Control: hides random keys until they hold as much attention as the k sinks do, in the step that loses it.

    The last key counts only where it brings the sum nearer. Limit: where the other keys hold less than the sinks do,
    all of them are hidden and the match fails; `Effect.removed_share` shows it.
    """

    rule = "mass:K"

    @property
    def most(self) -> int | None:
        return None

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        ranks, others, at_stake = (
            self.random_ranks(context, ranking, top),
            ranking.candidates & ~top,
            self.at_stake(context),
        )
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

    @property
    def most(self) -> int | None:
        return None

    def pick(self, context: RuleContext, ranking: Ranking, top: Tensor) -> Tensor:
        rows = context.committing
        if self.queries is not None or rows is None:
            if self.queries is None and not context.canvas.answers:
                raise CallError("rowmass: this call has neither tokens to commit nor an answer; name queries=")
            rows = context.among(self.queries or "answer")[:, -context.call.query.shape[2] :]
        held = pool(context.received_from(rows), self.scope, context.call.key.shape[1])
        ranks = self.random_ranks(context, ranking, top)
        others, aim = ranking.candidates & ~top, (held * top).sum(-1, keepdim=True)
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
        free = ranking.candidates & ~top & ~ranking.sinks
        # sink position → its key, −1 for none
        stand_in = context.memory.get("stand_in", torch.zeros(*top.shape[:2], 0, dtype=torch.long, device=top.device))
        stand_in = pad(stand_in, (0, top.shape[-1] - stand_in.shape[-1]), value=-1)
        kept = top & (stand_in >= 0) & free.gather(-1, stand_in.clamp(min=0))
        stand_in = stand_in.masked_fill(~kept, -1)
        taken = _marked(stand_in)
        needy = top & ~kept
        drawn = self.random_ranks(context, ranking, top | taken)
        in_line = needy.cumsum(-1) - 1
        order = drawn.argsort(dim=-1)
        enough = in_line < (ranking.candidates & ~top & ~taken).sum(-1, keepdim=True)
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
