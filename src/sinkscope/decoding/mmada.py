"""MMaDA's text sampler as a generator of steps: LLaDA's loop with confidences in float64 and without the EOS switches.

It writes the tokens of the published loop, from the same random draws, each row from its own seed.

Quirk: the published loop drops the padding mask under guidance, so that padded rows attend to their padding. Not kept:
a row of a batch writes what it would write alone, with guidance too.
"""

from collections.abc import Iterator

import torch

from sinkscope.decoding.blocks import BlockRule, block_steps
from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.settings import MMaDASettings
from sinkscope.models import Model


def mmada_steps(model: Model, batch: Batch, settings: MMaDASettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    return block_steps(model, batch, settings, BlockRule(precision=torch.float64))
