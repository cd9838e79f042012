"""dKV-Cache-Greedy (Ma et al., 2025; horseee/dKV-Cache, llada_dkv_cache_greedy.py).

Tokens are committed in a random order, which is drawn at the start of each block, so that a step knows what the next
one commits. A step computes what it commits, what the step before has committed, and a *window*: the masks nearest to
the former, left and right in turn. Every R-th step of a block computes everything.

Quirk: the order is drawn once a block, not in every step as LLaDA's random remasking draws it, so that other tokens are
committed.
Quirk: the window of each committed place is filled up with masks that are farther away where nearer ones are computed
already.
Quirk: the window may hold masks of later blocks, whose keys and values are then newer than those of their neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan
from sinkscope.models.family import Family


@dataclass(frozen=True)
class DKVGreedy(CachePolicy):
    """Computes what the step commits, what the step before has committed, and masks around.

    Attributes:
        every: a refresh in every so many steps of a block (published: ``cache_reloading_step``).
        window: how many masks are computed for each token that is committed (published: ``window_size``).
    """

    name = "dkv-greedy"
    rightward = True

    every: int = 4
    window: int = 4

    ranges = {"every": (1, inf), "window": (0, inf)}  # noqa: RUF012

    def first(self, moment: Moment) -> Plan:
        return Plan(None, open=_chosen(moment))

    def plan(self, moment: Moment) -> Plan:
        chosen = _chosen(moment)
        if moment.number % self.every == 0:
            return Plan(None, open=chosen)
        fresh = chosen | moment.commits[-1]
        for row in range(len(fresh) if self.window else 0):
            for place in _committed_now(moment, row):
                _fill(fresh[row], moment.masked[row], place, self.window)
        return Plan(fresh, open=chosen)

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        yield from super().misfits(family, settings)
        if not hasattr(settings, "remasking"):
            yield f"expected a family with LLaDA's sampler, found {family.name}; use --cache dkv-decode"
        elif settings.remasking != "random":
            yield f"expected commits in a random order, found --remasking {settings.remasking}; set random"
        elif settings.threshold or settings.factor:
            yield "its steps commit a fixed number of tokens; leave --threshold and --factor out"


def _committed_now(moment: Moment, row: int) -> list[int]:
    """Return what a row commits in this step, in the order of its draw, from the seed + its number."""
    settings, real = moment.settings, moment.real
    source = torch.Generator(real.device).manual_seed(settings.seed + row)
    count, padding = int(real[row].sum()), int((~real[row]).sum())
    start, stop = moment.start - padding, moment.stop - padding
    blocks_before = (moment.start - moment.width) // settings.block
    drawn = [
        torch.rand((1, count), device=real.device, generator=source, dtype=torch.float32)[0]
        for _ in range(blocks_before + 1)
    ][-1]
    order = drawn[start:stop].sort(descending=True).indices + moment.start
    base, more = divmod(settings.block, settings.steps // (settings.length // settings.block))
    first, last = (number * base + min(number, more) for number in (moment.number, moment.number + 1))
    return order[first:last].tolist()


def _chosen(moment: Moment) -> Tensor:
    chosen = torch.zeros_like(moment.masked)
    for row in range(len(chosen)):
        chosen[row, _committed_now(moment, row)] = True
    return chosen


def _fill(fresh: Tensor, masked: Tensor, place: int, count: int) -> None:
    """Mark as fresh the masks nearest to a place that are not yet, in turn from the left and the right."""
    free = (masked & ~fresh).tolist()
    found = distance = 0
    while found < count and (place - distance >= 0 or place + distance < len(free)):
        distance += 1
        for at in (place - distance, place + distance):
            if found < count and 0 <= at < len(free) and free[at]:
                fresh[at] = True
                found += 1
