"""LLaDA 2's sampler as a generator of steps: SDAR's, behind a cache, with LLaDA 2's settings; token for token the
published loop.

The published loop has no cache: it computes all blocks so far in every call. No token sees a later block, so finished
blocks come out the same, and here they are read once. A step commits masks only, and writing stops after the block with
an end-of-text token.

Quirk: a block has at most as many steps as there are tokens to write.
"""

from collections.abc import Iterator
from dataclasses import replace

from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.sdar import block_diffusion_steps
from sinkscope.decoding.settings import LLaDA2Settings
from sinkscope.models import Model


def llada2_steps(model: Model, batch: Batch, settings: LLaDA2Settings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    return block_diffusion_steps(
        model, batch, replace(settings, block_steps=min(settings.block_steps, settings.length))
    )
