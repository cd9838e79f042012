"""The cache with separate switches for the fresh positions of a step, for refreshes, and for the stored keys to read.

A *trigger* refreshes one row of the batch in the next step. It looks at the attention of the block's queries alone: a
main sink has moved where its head's most attended key is another one (Eq. 3 in queries' worth); attention has drifted
where the cosine of that key's weights, then and now, is below the level in some layer. The trigger ``entropy`` is after
EntropyCache (Cheong et al., 2026), which also computes the tokens written last (``fresh=changed,recent=N``); its code
is not published, and nothing here is claimed to equal it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sinkscope.attention import Columns, LayerCall
from sinkscope.decoding.caches.policy import (
    CachePolicy,
    Count,
    Moment,
    Plan,
    block_weights,
    loss_without,
    marked,
    outside_of,
    pick,
)
from sinkscope.decoding.canvas import Batch
from sinkscope.models.family import Family
from sinkscope.sinks.definition import excess_of
from sinkscope.sinks.finding import EXCESS

LEVELS = {"sink": 0.25, "drift": 0.9, "confidence": 0.5, "entropy": 1.0}
"""The default level of each trigger."""


@dataclass(frozen=True)
class BlockCache(CachePolicy):
    """Computes a part of the canvas in most steps, and all of it at the start of a block and whenever the trigger says
    so.

    Attributes:
        fresh: what a step computes: the ``block``; the block and its ``suffix``; the block and the main ``sinks``
            outside of it, which are the positions that it attended to most in the last refresh, over all heads; what
            ``changed`` in the last ``recent`` steps, and the masks of the block; ``all``.
        every: a refresh in every so many steps of a block; only at its start when None.
        keep: which keys outside of the block are read, ``budget`` of them in each layer and head of keys: ``all``; the
            ``sinks`` of Eq. 3, strongest first, and then the positions nearest to the block; the ``top`` ones by
            column; the top ones that are ``no-sinks``; those with the largest value ``norm``; those most ``attended``
            by the block's queries; the ``oracle``'s, each of which alone would change the block's attention output most
            if it were not read; ``random`` ones; the ``first`` ones; a ``window``, those nearest to the block.
        trigger: what else refreshes a row: a main ``sink`` that moves, ``drift`` of the attention to the most attended
            key, low ``confidence`` of a commit, or a high ``entropy`` of its choice.
        level: of the trigger; when None .25 of ``sink``, .9 of ``drift``, .5 of ``confidence``, 1 nat of ``entropy``.
        recent: for how many steps ``fresh=changed`` computes a token anew after it was committed.
        sinks: how many positions outside of the block ``fresh=sinks`` computes with it.
        budget: number of keys outside of the block that are read, where not all are.
        window: how many of the budget ``sinks`` leaves to the positions nearest to the block, at least.
        seed: of ``random``; the same in every row.
    """

    name = "block"
    fresh: Literal["block", "suffix", "sinks", "changed", "all"] = "block"
    every: Count | None = None
    trigger: Literal["none", "sink", "drift", "confidence", "entropy"] = "none"
    level: Annotated[float, Field(ge=0)] | None = None
    recent: Count = 1
    sinks: Count = 4
    keep: Literal["all", "sinks", "top", "no-sinks", "norm", "attended", "oracle", "random", "first", "window"] = "all"
    budget: Count | None = None
    window: Count = 8
    seed: int = 0

    def contradictions(self) -> Iterator[str]:
        if (self.keep == "all") != (self.budget is None):
            yield f"expected keep and budget together, found keep={self.keep} and budget {self.budget or 'none'}"
        if self.keep == "sinks" and self.budget is not None and self.window > self.budget:
            yield f"expected a window from 1 to the budget of {self.budget}, found {self.window}"
        if self.keep != "all" and self.fresh in ("suffix", "sinks"):
            yield f"fresh={self.fresh} computes keys that keep leaves out; use fresh=block"
        if self.keep != "all" and self.trigger != "none":
            yield f"trigger={self.trigger} looks at keys that keep leaves out; leave one of them out"
        if self.level is not None and self.trigger == "none":
            yield f"expected level beside a trigger, found {self.level:g}"
        if self.recent > 1 and self.fresh != "changed":
            yield f"expected recent beside fresh=changed, found {self.recent}"
        if self.fresh == "sinks" and self.trigger == "drift":
            yield "trigger=drift does not note where sinks are, which fresh=sinks needs; use trigger=sink"

    def plan(self, moment: Moment) -> Plan:
        plan = self._without_trigger(moment)
        if plan.fresh is None or self.trigger == "none":
            return plan
        due = FIRED[self.trigger](moment, LEVELS[self.trigger] if self.level is None else self.level)
        if not bool(due.any()):
            return plan
        fresh = None if bool(due.all()) else marked(plan.fresh, moment.real) | due[:, None]
        return Plan(fresh, plan.fresh if plan.open is None else plan.open)

    def _without_trigger(self, moment: Moment) -> Plan:
        if self.fresh == "all" or (self.every is not None and moment.number % self.every == 0):
            return Plan()
        block = slice(moment.start, moment.stop)
        if self.fresh == "block":
            return Plan(block)
        if self.fresh == "suffix":
            return Plan(slice(moment.start, None), open=block)
        if self.fresh == "sinks":
            assert moment.at_refresh is not None
            columns = moment.at_refresh.sum((1, 2)).masked_fill(~outside_of(moment), -torch.inf)
            sinks = columns.topk(self.sinks, dim=-1).indices
            return Plan(marked(block, moment.real).scatter(1, sinks, True), open=block)
        fresh = torch.zeros_like(moment.masked)
        fresh[:, block] = moment.masked[:, block] | torch.stack(list(moment.commits[-self.recent :])).any(0)[:, block]
        return Plan(fresh)

    def watches(self, refresh: bool) -> bool:
        return self.trigger in ("sink", "drift") or (refresh and self.fresh == "sinks")

    def follow(self, so_far: Tensor | None, call: LayerCall, moment: Moment) -> Tensor:
        found = (block_rows if self.trigger == "drift" else block_columns)(call, moment)[:, None]
        return found if so_far is None else torch.cat([so_far, found], dim=1)

    judges = property(lambda self: self.trigger == "entropy")
    measures = property(lambda self: self.keep not in ("all", "random", "first", "window"))
    selects = property(lambda self: self.keep != "all")

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        if self.keep == "oracle":
            return loss_without(call, moment)
        return block_columns(call, moment) if self.keep == "attended" else super().measure(call, columns, moment)

    def kept(self, moment: Moment) -> Tensor | None:
        return None if self.budget is None else pick(self._preference(moment, self.budget), moment, self.budget)

    def _preference(self, moment: Moment, budget: int) -> Tensor:
        """Return a priority for each position, [batch, 1 or layer, 1 or kv_head, position]; the highest are read."""
        rows, width = moment.real.shape
        position = torch.arange(width, device=moment.real.device)
        left, right = (moment.start - position).float(), position - moment.stop + 1
        near = -torch.where(position < moment.start, left, right + 0.5).expand(rows, 1, 1, -1)
        if self.keep == "window":
            return near
        if self.keep == "first":
            return -position.float().expand(rows, 1, 1, -1)
        if self.keep == "random":  # by seed, block and length of a row, whatever its neighbours and padding
            drawn = torch.zeros(rows, *moment.heads, width, device=moment.real.device, dtype=torch.float32)
            for row, count in enumerate(moment.real.sum(-1).tolist()):
                source = torch.Generator().manual_seed((self.seed * 1_000_003 + width - moment.start) % 2**64)
                own = torch.rand(*moment.heads, count, generator=source, device="cpu", dtype=torch.float32)
                drawn[row, ..., width - count :] = own
            return drawn
        assert moment.scores is not None and moment.values is not None
        if self.keep == "norm":
            return torch.stack(list(moment.values), dim=1)
        # Means over the query heads that share a head of keys.
        columns = torch.stack(list(moment.scores), dim=1).unflatten(2, (moment.values[0].shape[1], -1)).mean(3)
        if self.keep in ("top", "attended", "oracle"):
            return columns
        over = excess(columns, moment.real)
        if self.keep == "no-sinks":
            return columns - width * (over > EXCESS)
        over[..., moment.start : moment.stop] = -torch.inf  # the block is read anyway
        strongest = over >= over.topk(max(1, budget - self.window), dim=-1).values[..., -1:]
        sinks = strongest & (over > EXCESS) & (budget > self.window)
        return torch.where(sinks, over, near - width)

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        if self.fresh == "changed" and family.shift:
            yield f"{family.name} reads a token one position to its left, which may not be fresh; use fresh=block"

    def check_canvas(self, batch: Batch, settings: Any) -> None:
        shortest = min(batch.lengths) + settings.length
        room = shortest - getattr(settings, "block", settings.length)
        count = max(self.sinks if self.fresh == "sinks" else 0, self.budget or 0)
        if count > room:
            raise self.refuse(
                f"expected sinks and a budget of keys up to {room}, which the shortest canvas of {shortest} tokens has "
                f"outside of a block, found {count}"
            )


def excess(columns: Tensor, real: Tensor) -> Tensor:
    """Return by how much columns [batch, layer, kv_head, position] exceed the mean of the others (Eq. 3)."""
    placed = columns.float().masked_fill(~real[:, None, None], torch.nan).cpu().numpy()
    with np.errstate(invalid="ignore"):
        found = torch.from_numpy(np.asarray(excess_of(placed))).to(columns.device)
    return found.nan_to_num(nan=-torch.inf)


def block_columns(call: LayerCall, moment: Moment) -> Tensor:
    """Return the column sums of the block's queries, float32 [row, head, position]."""
    return block_weights(call, moment).sum(2)[..., -call.key.shape[2] :]


def block_rows(call: LayerCall, moment: Moment) -> Tensor:
    """Return the mean attention of each query of the block, float32 [row, query, position]; 0 where not computed."""
    weights = block_weights(call, moment).mean(1)[..., -call.key.shape[2] :]
    if call.part is None:
        return weights
    width = moment.stop - moment.start
    places = call.part.queries - moment.start
    within = torch.where((places >= 0) & (places < width), places, width)
    placed = weights.new_zeros(len(weights), width + 1, weights.shape[-1])
    return placed.scatter(1, within[..., None].expand_as(weights), weights)[:, :width]


def sinks_moved(moment: Moment, level: float) -> Tensor:
    """Return in which rows more than a share ``level`` of the main sinks have moved since the last refresh."""
    assert moment.now is not None and moment.at_refresh is not None
    before = moment.at_refresh
    had = (excess(before, moment.real) > EXCESS).any(-1)
    moved = had & (before.argmax(-1) != moment.now.argmax(-1))
    return moved.sum((1, 2)) > level * had.sum((1, 2))


def attention_drifted(moment: Moment, level: float) -> Tensor:
    """Return in which rows the attention to the most attended key has turned beyond ``level`` in some layer."""
    if moment.before is None:
        return torch.zeros(len(moment.real), dtype=torch.bool, device=moment.real.device)
    assert moment.now is not None
    both = (moment.before.sum(-1) > 0) & (moment.now.sum(-1) > 0)
    most = moment.before.masked_fill(~both[..., None], 0).sum(2).argmax(-1)[..., None, None].expand(*both.shape, 1)
    then, now = (one.gather(-1, most).squeeze(-1).masked_fill(~both, 0) for one in (moment.before, moment.now))
    return ((cosine_similarity(then, now, dim=-1) < level) & both.any(-1)).any(-1)


def commits_unsure(moment: Moment, level: float) -> Tensor:
    """Return in which rows the step before has committed a token that was less probable than ``level``, bool [row]."""
    assert moment.confidence is not None
    return (moment.commits[-1] & (moment.confidence < level)).any(-1)


def commits_open(moment: Moment, level: float) -> Tensor:
    """Return in which rows the step before has committed a token with an entropy above ``level`` nats."""
    assert moment.entropy is not None
    return (moment.commits[-1] & (moment.entropy > level)).any(-1)


FIRED = {"sink": sinks_moved, "drift": attention_drifted, "confidence": commits_unsure, "entropy": commits_open}
