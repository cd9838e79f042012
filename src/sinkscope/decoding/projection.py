"""What a bidirectional network says at chosen places of a canvas: its padding, its guidance, its logit shift.

The vocabulary projection is computed only for the places asked for.
"""

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Layout
from sinkscope.models import Model

LEAST_ROWS = 32  # a product with fewer rows takes another path in the matrix library and rounds differently


def with_unconditional(canvas: Tensor, prompt: Tensor, mask_id: int, guidance: float) -> Tensor:
    """What goes into the network, int64 [batch, position]: under guidance also the canvas with its prompt masked, behind it."""
    return canvas if guidance == 0 else torch.cat([canvas, canvas.masked_fill(prompt, mask_id)])


def hidden_states(model: Model, inputs: Tensor, layout: Layout) -> Tensor:
    """Last hidden states [rows, position, width] of one canvas, or of several under one layout."""
    copies = len(inputs) // len(layout.starts)
    output = model.network.model(
        input_ids=inputs,
        attention_mask=None if layout.padding is None else layout.padding.repeat(copies, 1),
        position_ids=layout.positions.repeat(copies, 1),
        use_cache=False,
    )
    return output.last_hidden_state.to(inputs.device)


def project(model: Model, hidden: Tensor, chosen: Tensor, layout: Layout, guidance: float = 0.0) -> Tensor:
    """Logits [chosen place, vocabulary] of the places marked in ``chosen`` [batch, position], row by row.

    With guidance ``un + (s + 1)(cond − un)``, the unconditional half of ``hidden`` behind the conditional one. A family with
    a logit shift is read one place to the left, its first token at its own place.
    """
    rows, width = chosen.shape
    needed = chosen.flatten().nonzero().squeeze(-1)
    count = len(needed)
    if count < LEAST_ROWS:
        others = (~chosen.flatten()).nonzero().squeeze(-1)
        needed = torch.cat([needed, others[: LEAST_ROWS - count]])
    if model.family.shift:
        starts = torch.tensor(layout.starts, device=needed.device)
        needed = needed - (needed % width > starts[needed // width]).long()
    logits = model.network.lm_head(hidden[:rows].flatten(0, 1)[needed])
    if guidance > 0:
        unconditional = model.network.lm_head(hidden[rows:].flatten(0, 1)[needed])
        logits = unconditional + (guidance + 1) * (logits - unconditional)
    return logits[:count].to(chosen.device)
