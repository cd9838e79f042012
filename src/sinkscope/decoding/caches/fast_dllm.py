"""Fast-dLLM's prefix and dual cache (Wu et al., 2025; NVlabs/Fast-dLLM, llada/generate.py).

A block begins with a refresh. Its later steps compute the block alone (dual), or the block and everything right of it (prefix), and read
the keys and values that the refresh stored for the rest.

Quirk: confidences are taken in float64, with ``threshold`` and ``factor`` too, whereas LLaDA takes them in the dtype of the logits.
Quirk: a mask left of the block, which a model leaves where it predicts the mask itself, is a candidate in the refresh only.
"""

from dataclasses import dataclass

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan
from sinkscope.decoding.settings import Settings
from sinkscope.models.family import Family


@dataclass(frozen=True)
class FastDLLMDual(CachePolicy):
    """Computes the block; reads everything else as the refresh at its start stored it."""

    name = "fast-dllm-dual"
    double = True

    def plan(self, moment: Moment) -> Plan:
        return Plan(slice(moment.start, moment.stop))

    def check(self, family: Family, settings: Settings) -> None:
        if not hasattr(settings, "block"):
            raise self.refuse(f"expected a sampler with blocks, found that of {family.name}; use --cache block")


@dataclass(frozen=True)
class FastDLLMPrefix(FastDLLMDual):
    """Computes the block and everything right of it; reads what is left of it as the refresh at its start stored it."""

    name = "fast-dllm-prefix"

    def plan(self, moment: Moment) -> Plan:
        return Plan(slice(moment.start, None), open=slice(moment.start, moment.stop))
