"""A sampler that writes from the left, several tokens in a step."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sinkscope.decoding.canvas import Batch, Step, masked_canvas, publishing
from sinkscope.decoding.projection import hidden_states, project
from sinkscope.decoding.settings import Settings
from sinkscope.models import Model


@dataclass(frozen=True)
class LeftmostSettings(Settings):
    """Settings of `leftmost_steps`.

    Attributes:
        length: tokens to write.
        tokens_at_once: tokens that one step writes.
    """

    length: int = 32
    tokens_at_once: int = 1


@torch.no_grad()
def leftmost_steps(model: Model, batch: Batch, settings: LeftmostSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    canvas, layout = masked_canvas(batch, settings.length, model.card.mask_id)
    with publishing(model, batch, settings) as publisher:
        for number in range(-(-settings.length // settings.tokens_at_once)):
            masked = canvas == model.card.mask_id
            chosen = masked & (masked.cumsum(-1) <= settings.tokens_at_once)
            publisher.before(canvas, masked, layout.lengths, range(len(canvas)))
            logits = project(model, hidden_states(model, canvas, layout), chosen, layout)
            sure, token = torch.softmax(logits.float(), dim=-1).max(-1)
            written = torch.full_like(canvas, -1).masked_scatter_(chosen, token)
            confidence = torch.full(canvas.shape, torch.nan, device=canvas.device).masked_scatter_(chosen, sure)
            canvas = torch.where(chosen, written, canvas)
            publisher.after(written, written, confidence)
            yield Step(number, canvas, written, confidence)
