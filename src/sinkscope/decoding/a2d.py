"""dllm's sampler for masked diffusion (MDLM) as a generator of steps: LLaDA's loop with a schedule and a shift to
choose.

A step commits the expected number of tokens of the linear schedule, rounded half to even; steps that would commit none
are left out. Blocks and steps need not divide the length. Source: ZHZisZZ/dllm, dllm/core/samplers/mdlm.py.

Not modelled: the binomial schedule, ``cfg_keep_tokens``, suppressed tokens, and infilling.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sinkscope.decoding.blocks import BlockRule, block_steps
from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.settings import A2DSettings
from sinkscope.models import Model


def scheduled_quotas(masks: int, steps: int) -> list[int]:
    """Return how many tokens each step of a block commits by the linear schedule, in float32 as published."""
    found, left = [], masks
    for after in range(steps - 1, -1, -1):
        now, later = np.float32((after + 1) / steps), np.float32(after / steps)
        kept = (np.float32(1) - (np.float32(1) - later)) / (np.float32(1) - (np.float32(1) - now))
        found.append(min(left, int(np.rint(left * (1 - float(kept))))))
        left -= found[-1]
    return [count for count in found if count]


def a2d_steps(model: Model, batch: Batch, settings: A2DSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    shifted = replace(model, family=replace(model.family, shift=settings.right_shift_logits))
    return block_steps(shifted, batch, settings, BlockRule(quotas=scheduled_quotas))
