"""The cache with its switches apart: what is computed in a step, when everything is, and which of the stored keys are read."""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from sinkscope.attention import Columns, LayerCall
from sinkscope.decoding.caches.keeping import by_group, excess, loss_without, nearness, outside_of, pick
from sinkscope.decoding.caches.policy import CachePolicy, Moment, Places, Plan
from sinkscope.decoding.caches.triggers import (
    LEVELS,
    attention_drifted,
    block_columns,
    block_rows,
    commits_open,
    commits_unsure,
    sinks_moved,
)
from sinkscope.decoding.canvas import Batch
from sinkscope.decoding.settings import Settings
from sinkscope.documents import shown
from sinkscope.models.family import Family
from sinkscope.sinks.finding import EXCESS

FIRED = {"sink": sinks_moved, "drift": attention_drifted, "confidence": commits_unsure, "entropy": commits_open}
MEASURED = ("sinks", "top", "no-sinks", "norm", "attended", "oracle")


@dataclass(frozen=True)
class BlockCache(CachePolicy):
    """Computes a part of the canvas in most steps, and all of it at the start of a block and whenever the trigger says so.

    Attributes:
        fresh: what a step computes: the ``block``; the block and its ``suffix``; the block and the main ``sinks`` outside of it, which are
            the positions that it attended to most in the last refresh, over all heads; what ``changed`` in the last ``recent`` steps, and
            the masks of the block; ``all``.
        every: a refresh in every so many steps of a block; only at its start when None.
        keep: which keys outside of the block are read, ``budget`` of them in each layer and head of keys: ``all``; the ``sinks`` of Eq. 3,
            strongest first, and then the positions nearest to the block; the ``top`` ones by column; the top ones that are ``no-sinks``;
            those with the largest value ``norm``; those most ``attended`` by the block's queries; the ``oracle``'s, each of which alone
            would change the block's attention output most if it were not read; ``random`` ones; the ``first`` ones; a ``window``, those
            nearest to the block.
        trigger: what else refreshes a row: a main ``sink`` that moves, ``drift`` of the attention to the most attended key,
            low ``confidence`` of what was committed, or a high ``entropy`` of what it was chosen from.
        level: of the trigger; when None .25 of ``sink``, .9 of ``drift``, .5 of ``confidence``, 1 nat of ``entropy``.
        recent: for how many steps ``fresh=changed`` computes a token anew after it was committed.
        sinks: how many positions outside of the block ``fresh=sinks`` computes with it.
        budget: number of keys outside of the block that are read, where not all are.
        window: how many of the budget ``sinks`` leaves to the positions nearest to the block, at least.
        seed: of ``random``; the same in every row.
    """

    name = "block"

    fresh: Literal["block", "suffix", "sinks", "changed", "all"] = "block"
    every: int | None = None
    trigger: Literal["none", "sink", "drift", "confidence", "entropy"] = "none"
    level: float | None = None
    recent: int = 1
    sinks: int = 4
    keep: Literal["all", "sinks", "top", "no-sinks", "norm", "attended", "oracle", "random", "first", "window"] = "all"
    budget: int | None = None
    window: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            known = get_args(hint) if get_origin(hint) is Literal else ()
            if known and getattr(self, name) not in known:
                raise self.refuse(f"expected {name} as one of {', '.join(known)}, found {shown(getattr(self, name))}")
        if self.every is not None and self.every < 1:
            raise self.refuse(f"expected every as a number of steps from 1 upwards, found {self.every}")
        if (self.keep == "all") != (self.budget is None):
            raise self.refuse(
                f"expected keep and budget together, found keep={self.keep} and budget {'none' if self.budget is None else self.budget}; "
                f"write keep={'sinks' if self.keep == 'all' else self.keep},budget={self.budget or 64}"
            )
        if self.budget is not None and self.budget < 1:
            raise self.refuse(f"expected a budget of keys from 1 upwards, found {self.budget}")
        if self.keep == "sinks" and self.budget is not None and not 1 <= self.window <= self.budget:
            raise self.refuse(f"expected a window from 1 to the budget of {self.budget}, found {self.window}")
        if self.keep != "all" and self.fresh in ("suffix", "sinks"):
            raise self.refuse(f"fresh={self.fresh} computes keys that keep leaves out; use fresh=block")
        if self.keep != "all" and self.trigger != "none":
            raise self.refuse(f"trigger={self.trigger} looks at keys that keep leaves out; leave one of them out")
        most = float("inf") if self.trigger == "entropy" else 1
        if self.level is not None and (self.trigger == "none" or not 0 < self.level <= most):
            up_to = "" if self.trigger == "entropy" else " and up to 1"
            raise self.refuse(
                f"expected level above 0{up_to}, beside a trigger, found {self.level:g} and trigger={self.trigger}"
            )
        if self.recent < 1 or (self.recent > 1 and self.fresh != "changed"):
            raise self.refuse(
                f"expected recent as a number of steps from 1 upwards, beside fresh=changed, found {self.recent}"
            )
        if self.fresh == "sinks" and self.trigger == "drift":
            raise self.refuse(
                "trigger=drift does not note where sinks are, which fresh=sinks needs; use trigger=sink, or fresh=block"
            )
        if self.window < 1:
            raise self.refuse(f"expected window as a number of positions from 1 upwards, found {self.window}")
        if self.sinks < 1:
            raise self.refuse(f"expected sinks as a number of positions from 1 upwards, found {self.sinks}")

    def plan(self, moment: Moment) -> Plan:
        plan, due = self._without_trigger(moment), self._due(moment)
        if plan.fresh is None or due is None or not bool(due.any()):
            return plan
        open_places = plan.fresh if plan.open is None else plan.open
        return Plan(None if bool(due.all()) else _marked(plan.fresh, moment.real) | due[:, None], open_places)

    def _due(self, moment: Moment) -> Tensor | None:
        """Return which rows the trigger refreshes, bool [batch]; None without one."""
        if self.trigger == "none":
            return None
        level = LEVELS[self.trigger] if self.level is None else self.level
        return FIRED[self.trigger](moment, level)

    def watches(self, refresh: bool) -> bool:
        return self.trigger in ("sink", "drift") or (refresh and self.fresh == "sinks")

    def watch(self, call: LayerCall, moment: Moment) -> Tensor:
        return block_rows(call, moment) if self.trigger == "drift" else block_columns(call, moment)

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
            return Plan(
                _marked(block, moment.real).scatter(1, columns.topk(self.sinks, dim=-1).indices, True), open=block
            )
        fresh = torch.zeros_like(moment.masked)
        fresh[:, block] = moment.masked[:, block] | torch.stack(list(moment.commits[-self.recent :])).any(0)[:, block]
        return Plan(fresh)

    @property
    def judges(self) -> bool:
        return self.trigger == "entropy"

    @property
    def measures(self) -> bool:
        return self.keep in MEASURED

    @property
    def selects(self) -> bool:
        return self.keep != "all"

    def measure(self, call: LayerCall, columns: Columns, moment: Moment) -> Tensor:
        if self.keep == "oracle":
            return loss_without(call, moment)
        return block_columns(call, moment) if self.keep == "attended" else super().measure(call, columns, moment)

    def kept(self, moment: Moment) -> Tensor | None:
        if self.budget is None:
            return None
        return pick(self._preference(moment), moment, [self.budget] * len(moment.real))

    def _preference(self, moment: Moment) -> Tensor:
        """Return a priority for each position, [batch, 1 or layer, 1 or kv_head, position]; the highest are read."""
        rows, width = moment.real.shape
        near = nearness(moment).expand(rows, 1, 1, -1)
        if self.keep == "window":
            return near
        if self.keep == "first":
            return -torch.arange(width, dtype=torch.float32, device=near.device).expand(rows, 1, 1, -1)
        if self.keep == "random":
            return self._drawn(moment)
        assert moment.scores is not None and moment.values is not None and self.budget is not None
        if self.keep == "norm":
            return torch.stack(list(moment.values), dim=1)
        columns = by_group(moment.scores, moment.values)
        if self.keep in ("top", "attended", "oracle"):
            return columns
        over = excess(columns, moment.real)
        if self.keep == "no-sinks":
            return columns - width * (over > EXCESS)
        over = over.masked_fill(~moment.real[:, None, None], -torch.inf)
        over[..., moment.start : moment.stop] = -torch.inf  # the block is read anyway
        strongest = over >= over.topk(max(1, self.budget - self.window), dim=-1).values[..., -1:]
        sinks = strongest & (over > EXCESS) & (self.budget > self.window)
        return torch.where(sinks, over, near - width)

    def _drawn(self, moment: Moment) -> Tensor:
        """Return random numbers that depend on the seed, the block and the length of a row, not on its neighbours or its padding."""
        rows, width = moment.real.shape
        drawn = torch.zeros(rows, *moment.heads, width, device=moment.real.device, dtype=torch.float32)
        for row, count in enumerate(moment.real.sum(-1).tolist()):
            source = torch.Generator().manual_seed((self.seed * 1_000_003 + width - moment.start) % 2**64)
            drawn[row, ..., width - count :] = torch.rand(
                *moment.heads, count, generator=source, device="cpu", dtype=torch.float32
            )
        return drawn

    def check(self, family: Family, settings: Settings) -> None:
        if self.fresh == "changed" and family.shift:
            raise self.refuse(
                f"{family.name} reads a token one position to its left, which may not be fresh; use fresh=block"
            )

    def check_canvas(self, batch: Batch, settings: Any) -> None:
        room = min(batch.lengths) + settings.length - getattr(settings, "block", settings.length)
        if self.fresh == "sinks" and self.sinks > room:
            where = f"which the shortest canvas of {min(batch.lengths) + settings.length} tokens has outside of a block"
            raise self.refuse(f"expected at most {room} sinks, {where}, found {self.sinks}")
        if self.budget is not None and self.budget > room:
            raise self.refuse(
                f"expected a budget of at most {room} keys, which the shortest canvas of {min(batch.lengths) + settings.length} tokens has "
                f"outside of a block, found {self.budget}; lower it or use keep=all"
            )


def _marked(places: Places, real: Tensor) -> Tensor:
    """Return positions as marks, bool [batch, position]."""
    if isinstance(places, Tensor):
        return places
    marked = torch.zeros_like(real)
    marked[:, places] = True
    return marked & real
