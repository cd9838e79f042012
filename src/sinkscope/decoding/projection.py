"""What a bidirectional network says at chosen places of a canvas: its padding, its guidance, its logit shift.

The vocabulary projection is computed only for the places asked for.
"""

from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import upload
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
        attention_mask=layout.seen if layout.seen is None or copies == 1 else layout.seen.repeat(copies, 1, 1, 1),
        position_ids=layout.positions.repeat(copies, 1),
        use_cache=False,
    )
    return output.last_hidden_state.to(inputs.device)


class Remaining:
    """How many places of a canvas are candidates, never fewer than there are; while a block is written they only get fewer.

    On the CPU they are counted. On a GPU counting waits for all that is under way, so that after the first step the count of
    the step before is taken: a few rows too many are projected, and dropped.

    Args:
        late: whether the count of the step before is taken; None says on a GPU.
    """

    def __init__(self, late: bool | None = None) -> None:
        self._late = late
        self._before: tuple[Tensor, Any] | None = None

    def most(self, candidates: Tensor) -> int:
        """At least as many as are marked in ``candidates`` [batch, position]."""
        counted, before = candidates.sum(), self._before
        if not (candidates.is_cuda if self._late is None else self._late):
            return int(counted)
        self._before = _on_its_way(counted)
        if before is None:
            return int(counted)
        number, arrived = before
        if arrived is not None:
            arrived.synchronize()
        return int(number)


def _on_its_way(number: Tensor) -> tuple[Tensor, Any]:
    """A number copied to the host without waiting, and the event that says it is there."""
    if not number.is_cuda:
        return number, None
    here = torch.empty((), dtype=number.dtype, device="cpu", pin_memory=True)
    here.copy_(number, non_blocking=True)
    return here, torch.cuda.current_stream(number.device).record_event()


def project(model: Model, hidden: Tensor, chosen: Tensor, layout: Layout, guidance: float = 0.0, most: int | None = None) -> Tensor:
    """Logits [chosen place, vocabulary] of the places marked in ``chosen`` [batch, position], row by row.

    With guidance ``un + (s + 1)(cond − un)``, the unconditional half of ``hidden`` behind the conditional one. A family with
    a logit shift is read one place to the left, its first token at its own place.

    Args:
        most: at least how many places are marked; logits of other places follow up to that number. Counted when None.
    """
    rows, width = chosen.shape
    most = int(chosen.sum()) if most is None else most
    needed = (~chosen.flatten()).byte().argsort(stable=True)[: max(most, LEAST_ROWS)]
    if model.family.shift:
        starts = upload(torch.tensor(layout.starts, device="cpu"), needed.device)
        needed = needed - (needed % width > starts[needed // width]).long()
    logits = model.network.lm_head(hidden[:rows].flatten(0, 1)[needed])
    if guidance > 0:
        unconditional = model.network.lm_head(hidden[rows:].flatten(0, 1)[needed])
        logits = unconditional + (guidance + 1) * (logits - unconditional)
    return logits[:most].to(chosen.device)
