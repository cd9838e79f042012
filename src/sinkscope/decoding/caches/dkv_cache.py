"""dKV-Cache (Ma et al., 2025; horseee/dKV-Cache, llada_dkv_cache_decode.py, llada_dkv_cache_greedy.py,
dream_generation_utils.py).

*Decode*: keys and values of a token are stored one step after it was committed, once it has been read as itself
(*delayed*): a step computes all masks of the canvas and what the step before has committed. Every R-th step of a block
computes everything, for LLaDA the second one too. Dream reads a token one position to its left, and so the places are
those left of these tokens (published: shift type ``un``).

Quirk: LLaDA's confidences are taken in float64, as by Fast-dLLM.
Quirk: for Dream the last position of the canvas counts as stored from a block's third step on, written or not.

*Greedy*: tokens are committed in a random order. A step computes what it commits, what the step before has committed,
and a *window*: the masks nearest to the former, left and right in turn.

Quirk: the order is drawn once a block, not in every step as LLaDA's random remasking draws it.
Quirk: the window is filled up with masks that are farther away where nearer ones are computed already.
Quirk: the window may hold masks of later blocks, whose keys and values are then newer than those of their neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, Count, Moment, Plan
from sinkscope.models.family import Family


@dataclass(frozen=True)
class DKVDecode(CachePolicy):
    """Computes all masks and what the step before has committed.

    Attributes:
        every: a refresh in every so many steps of a block (published: ``cache_reloading_step``, 4 in its example, and
            ``cache_steps``).
    """

    name = "dkv-decode"
    double = True
    every: Count = 4

    def plan(self, moment: Moment) -> Plan:
        if moment.number % self.every == 0 or (moment.number == 1 and not moment.shift):
            return Plan()
        changing = moment.masked | moment.commits[-1]
        if not moment.shift:
            return Plan(changing)
        last = torch.full_like(changing[:, :1], moment.number == 1)
        return Plan(torch.cat([changing[:, 1:], last], dim=1), open=moment.masked)


@dataclass(frozen=True)
class DKVGreedy(CachePolicy):
    """Computes what the step commits, what the step before has committed, and masks around.

    Attributes:
        every: a refresh in every so many steps of a block (published: ``cache_reloading_step``).
        window: how many masks are computed for each token that is committed (published: ``window_size``).
    """

    name = "dkv-greedy"
    rightward = True
    every: Count = 4
    window: Annotated[int, Field(ge=0)] = 4

    def first(self, moment: Moment) -> Plan:
        return Plan(open=self._committed_now(moment)[1])

    def plan(self, moment: Moment) -> Plan:
        places, chosen = self._committed_now(moment)
        if moment.number % self.every == 0:
            return Plan(open=chosen)
        fresh = chosen | moment.commits[-1]
        for row, committed in enumerate(places):
            for place in committed:  # the masks nearest to it that are not fresh yet, of two the left one first
                free = (moment.masked[row] & ~fresh[row]).nonzero().flatten().tolist()
                fresh[row, sorted(free, key=lambda at: (abs(at - place), at > place))[: self.window]] = True
        return Plan(fresh, open=chosen)

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        yield from super().misfits(family, settings)
        if not hasattr(settings, "remasking"):
            yield f"expected a family with LLaDA's sampler, found {family.name}; use --cache dkv-decode"
        elif settings.remasking != "random":
            yield f"expected commits in a random order, found --remasking {settings.remasking}; set random"
        elif settings.threshold or settings.factor:
            yield "its steps commit a fixed number of tokens; leave --threshold and --factor out"

    def _committed_now(self, moment: Moment) -> tuple[list[list[int]], Tensor]:
        """Return what each row commits in this step, in the order of its draw, and marked, bool [batch, position]."""
        settings, real = moment.settings, moment.real
        found, chosen = [], torch.zeros_like(moment.masked)
        blocks_before = (moment.start - moment.width) // settings.block
        base, more = divmod(settings.block, settings.steps // (settings.length // settings.block))
        first, last = (number * base + min(number, more) for number in (moment.number, moment.number + 1))
        for row, count in enumerate(real.sum(-1).tolist()):
            source = torch.Generator(real.device).manual_seed(settings.seed + row)
            padding = real.shape[1] - count
            for _ in range(blocks_before + 1):
                drawn = torch.rand((1, count), device=real.device, generator=source, dtype=torch.float32)[0]
            order = drawn[moment.start - padding : moment.stop - padding].sort(descending=True).indices + moment.start
            found.append(order[first:last].tolist())
            chosen[row, found[-1]] = True
        return found, chosen
