"""Fast-dLLM's prefix and dual cache (Wu et al., 2025; NVlabs/Fast-dLLM, llada/generate.py,
dream/model/generation_utils_block.py).

A block begins with a refresh. Its later steps compute the block alone (dual), or the block and everything right of it
(prefix), and read the keys and values that the refresh stored for the rest. Dream, which has no blocks, is given some.

Quirk: confidences are taken in float64, with ``threshold`` and ``factor`` too, not in the dtype of the logits.
Quirk: a mask left of the block, where a model has predicted the mask itself, is a candidate in the refresh only.
Quirk: with Dream a refresh commits the first token of the block alone, however unsure it is.
Quirk: with Dream tokens are committed by entropy, whatever ``algorithm`` says; with ``threshold`` by probability.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sinkscope.decoding.caches.policy import CachePolicy, Count, Moment, Plan
from sinkscope.models.family import Family


@dataclass(frozen=True)
class FastDLLMDual(CachePolicy):
    """Computes the block; reads everything else as the refresh at its start stored it.

    Attributes:
        block: tokens of a block, for a family without blocks; LLaDA and MMaDA have a setting of this name.
    """

    name = "fast-dllm-dual"
    double = True
    block: Count | None = None

    def plan(self, moment: Moment) -> Plan:
        return Plan(slice(moment.start, moment.stop))

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        own = hasattr(settings, "block")
        if own == (self.block is not None):
            advice = "leave it out here and set --block" if own else f"write {self.name}:block=32"
            yield f"expected {'no' if own else 'a'} block for {family.name}, found {self.block}; {advice}"
        if self.block is None:
            return
        blocks = settings.length // self.block
        if settings.length % self.block:
            yield f"expected a block that divides the {settings.length} tokens to write, found {self.block}"
        elif not settings.threshold and (settings.steps % blocks or settings.steps < 2 * blocks):
            yield f"expected steps that {blocks} blocks share, at least two for each, found {settings.steps}"


@dataclass(frozen=True)
class FastDLLMPrefix(FastDLLMDual):
    """Computes the block and everything right of it; reads the rest as the refresh at its start stored it."""

    name = "fast-dllm-prefix"

    def plan(self, moment: Moment) -> Plan:
        return Plan(slice(moment.start, None), open=slice(moment.start, moment.stop))
