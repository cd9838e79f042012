"""Writing in an order that is given: what a diffusion model writes if it may not choose when (paper 1, §5.2).

If hiding a sink is harmless because the tokens that relied on it wait, it is no longer harmless when they may not wait.
The other way to take the choice away is LLaDA's own ``remasking="random"``.
"""

from collections.abc import Sequence

import numpy as np
import torch

from sinkscope.decoding import Generation, make_batch, resolve_settings
from sinkscope.decoding.canvas import publishing
from sinkscope.errors import CallError
from sinkscope.models import Model


def order_of(written: np.ndarray) -> list[list[int]]:
    """The positions each step of a trace committed, from ``trace.written[:]`` [step, position]."""
    return [np.flatnonzero(step >= 0).tolist() for step in written]


@torch.no_grad()
def write_in_order(model: Model, prompt: str | Sequence[int], order: Sequence[Sequence[int]]) -> Generation:
    """Writes with a masked diffusion model, each step committing the positions it is told; arg-max tokens, no guidance.

    Args:
        order: positions of the canvas, prompt included, for every step; together all positions behind the prompt.

    Raises:
        CallError: an autoregressive model, or an order that leaves out a position or names one twice.
    """
    mask = model.card.mask_id
    if mask is None:
        raise CallError(f"{model.card.name} has no mask token; it writes from left to right")
    ids = model.encode(prompt)
    length = sum(map(len, order))
    if sorted(place for places in order for place in places) != list(range(len(ids), len(ids) + length)):
        raise CallError(f"order: expected every position from {len(ids)} (behind the prompt) on once, found another set")
    batch = make_batch(model, [ids], [prompt if isinstance(prompt, str) else None], length)
    canvas = torch.cat([batch.tokens, batch.tokens.new_full((1, length), mask)], dim=1)
    lengths = torch.tensor([canvas.shape[1]])
    settings = resolve_settings(model.family, length=length)
    with publishing(model, batch, settings) as publisher:
        for places in order:
            publisher.before(canvas, canvas == mask, lengths, (0,))
            states = model.network.model(input_ids=canvas, use_cache=False).last_hidden_state
            if model.family.shift:
                states = torch.cat([states[:, :1], states[:, :-1]], dim=1)
            likely = torch.softmax(model.network.lm_head(states).float(), dim=-1).max(-1)
            written = torch.full_like(canvas, -1)
            written[:, list(places)] = likely.indices[:, list(places)]
            publisher.after(written, likely.indices, likely.values.masked_fill(canvas != mask, torch.nan))
            canvas = torch.where(written >= 0, written, canvas)
    tokens = canvas[0].cpu()
    return Generation(tokens, model.answer_text(tokens[len(ids) :]), len(order), len(ids))
