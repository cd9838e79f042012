"""dKV-Cache-Decode (Ma et al., 2025; horseee/dKV-Cache, llada_dkv_cache_decode.py, dream_generation_utils.py).

Keys and values of a token are stored one step after it was committed, once it has been read as itself (*delayed*): a
step computes all masks of the canvas and what the step before has committed. Every R-th step of a block computes
everything, for LLaDA the second one too. Dream reads a token one position to its left, and so the places are those left
of these tokens (published: shift type ``un``).

Quirk: LLaDA's confidences are taken in float64, as by Fast-dLLM.
Quirk: for Dream the last position of the canvas counts as stored from the third step of a block on, whether it was
written or not.
"""

from dataclasses import dataclass
from math import inf

import torch

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan


@dataclass(frozen=True)
class DKVDecode(CachePolicy):
    """Computes all masks and what the step before has committed.

    Attributes:
        every: a refresh in every so many steps of a block (published: ``cache_reloading_step``, 4 in its example, and
            ``cache_steps``).
    """

    name = "dkv-decode"
    double = True

    every: int = 4

    ranges = {"every": (1, inf)}  # noqa: RUF012

    def plan(self, moment: Moment) -> Plan:
        if moment.number % self.every == 0 or (moment.number == 1 and not moment.shift):
            return Plan()
        changing = moment.masked | moment.commits[-1]
        if not moment.shift:
            return Plan(changing)
        last = torch.full_like(changing[:, :1], moment.number == 1)
        return Plan(torch.cat([changing[:, 1:], last], dim=1), open=moment.masked)
