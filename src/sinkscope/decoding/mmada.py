"""MMaDA's text sampler as a generator of steps: LLaDA's loop, confidences in float64, no EOS switches.

Token for token the published loop, and draw for draw, each row from its own seed.

Quirk: the published loop drops the padding mask under guidance, so that padded rows see their padding. Not kept: a row of a
batch writes what it writes alone, with guidance too.
"""

from collections.abc import Iterator

import torch

from sinkscope.decoding.blocks import BlockRule, block_steps
from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.settings import MMaDASettings
from sinkscope.models import Model


def mmada_steps(model: Model, batch: Batch, settings: MMaDASettings) -> Iterator[Step]:
    """Writes ``settings.length`` tokens behind each prompt, one `Step` a forward call."""
    return block_steps(model, batch, settings, BlockRule(precision=torch.float64))
