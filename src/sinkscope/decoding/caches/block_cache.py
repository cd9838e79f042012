"""The cache with its switches apart: what is computed in a step, and when everything is."""

from dataclasses import dataclass
from typing import Literal

import torch

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan
from sinkscope.decoding.settings import Settings
from sinkscope.models.family import Family


@dataclass(frozen=True)
class BlockCache(CachePolicy):
    """Computes a part of the canvas in most steps, and all of it at the start of a block and whenever the trigger says so.

    Attributes:
        fresh: what a step computes: the ``block``; the block and its ``suffix``; what ``changed`` in the step before, with the masks of
            the block; ``all``.
        every: a refresh in every so many steps of a block; only at its start when None.
    """

    name = "block"

    fresh: Literal["block", "suffix", "changed", "all"] = "block"
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise self.refuse(f"expected every as a number of steps from 1 upwards, found {self.every}")

    def plan(self, moment: Moment) -> Plan:
        if self.fresh == "all" or (self.every is not None and moment.number % self.every == 0):
            return Plan()
        block = slice(moment.start, moment.stop)
        if self.fresh == "block":
            return Plan(block)
        if self.fresh == "suffix":
            return Plan(slice(moment.start, None), open=block)
        fresh = torch.zeros_like(moment.masked)
        fresh[:, block] = moment.masked[:, block] | moment.commits[-1][:, block]
        return Plan(fresh)

    def check(self, family: Family, settings: Settings) -> None:
        if self.fresh == "changed" and family.shift:
            raise self.refuse(f"{family.name} reads a token one position to its left, which may not be fresh; use fresh=block")
