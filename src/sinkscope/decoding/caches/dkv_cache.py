"""dKV-Cache-Decode (Ma et al., 2025; horseee/dKV-Cache, generation_utils/llada_dkv_cache_decode.py).

Keys and values of a token are stored one step after it was committed, once it has been read as itself (*delayed*): a step computes all
masks of the canvas and what the step before has committed. The first two steps of a block compute everything, and so does every R-th.

Quirk: confidences are taken in float64, as by Fast-dLLM.
"""

from dataclasses import dataclass

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan
from sinkscope.decoding.settings import Settings
from sinkscope.models.family import Family


@dataclass(frozen=True)
class DKVDecode(CachePolicy):
    """Computes all masks and what the step before has committed.

    Attributes:
        every: a refresh in every so many steps of a block (published: ``cache_reloading_step``, 4 in its example).
    """

    name = "dkv-decode"
    double = True

    every: int = 4

    def __post_init__(self) -> None:
        if self.every < 1:
            raise self.refuse(f"expected every as a number of steps from 1 upwards, found {self.every}")

    def plan(self, moment: Moment) -> Plan:
        if moment.number <= 1 or moment.number % self.every == 0:
            return Plan()
        return Plan(moment.masked | moment.commits[-1])

    def check(self, family: Family, settings: Settings) -> None:
        if family.shift:
            raise self.refuse(
                f"{family.name} reads a token one position to its left, for which the published code has rules of its own that are not "
                "here; use --cache block"
            )
