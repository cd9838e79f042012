"""Logits of a bidirectional network at chosen positions of a canvas, with padding, guidance and logit shift.

The projection onto the vocabulary is the costly part of a small network; it is computed only for the positions that are
asked for.
"""

import math
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import mask_for, upload
from sinkscope.decoding.canvas import Layout
from sinkscope.errors import ModelError
from sinkscope.models import Model


class NotFiniteError(ModelError):
    """Logits that are not finite, of which no token can be chosen."""


def check_finite(logits: Tensor) -> Tensor:
    """Return logits; on a GPU without a check, because reading one from it would wait.

    Raises:
        NotFiniteError: NaN or an infinite number among them.
    """
    on_the_host = logits.device.type == "cpu" and not logits.is_cuda
    if on_the_host and logits.numel() and not math.isfinite(largest := float(logits.detach().amax())):
        raise NotFiniteError(
            f"expected finite logits, found {largest}; its weights are damaged, or overflow in {logits.dtype}"
        )
    return logits


LEAST_ROWS = 32  # matrix libraries compute a product with fewer rows in another way, which rounds differently


def with_unconditional(canvas: Tensor, prompt: Tensor, mask_id: int, guidance: float) -> Tensor:
    """Return the input of the network: the canvas, and with guidance the canvas with a masked prompt behind it."""
    return canvas if guidance == 0 else torch.cat([canvas, canvas.masked_fill(prompt, mask_id)])


def hidden_states(model: Model, inputs: Tensor, layout: Layout) -> Tensor:
    """Return the last hidden states [rows, position, width] of one or several copies of a batch of canvases."""
    copies = len(inputs) // len(layout.starts)
    output = model.network.model(
        input_ids=inputs,
        attention_mask=mask_for(
            model.network, layout.seen if layout.seen is None or copies == 1 else layout.seen.repeat(copies, 1, 1, 1)
        ),
        position_ids=layout.positions.repeat(copies, 1),
        use_cache=False,
    )
    return output.last_hidden_state.to(inputs.device)


class Remaining:
    """An upper bound on the number of candidate positions of a canvas, while a block is written and they only get
    fewer.

    On the CPU the candidates are counted. On a GPU a count would wait for all queued work, so from the second step on
    the count of the previous step is used; a few rows too many are projected and dropped.

    Args:
        late: whether the count of the previous step is used; None uses it on a GPU.
    """

    def __init__(self, late: bool | None = None) -> None:
        self._late = late
        self._before: tuple[Tensor, Any] | None = None

    def most(self, candidates: Tensor) -> int:
        """Return a number that is at least the number of marks in ``candidates``, bool [batch, position]."""
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
    """Return a number whose copy to the host has started, and the event after which it has arrived; None on the CPU."""
    if not number.is_cuda:
        return number, None
    here = torch.empty((), dtype=number.dtype, device="cpu", pin_memory=True)
    here.copy_(number, non_blocking=True)
    return here, torch.cuda.current_stream(number.device).record_event()


def project(
    model: Model, hidden: Tensor, chosen: Tensor, layout: Layout, guidance: float = 0.0, most: int | None = None
) -> Tensor:
    """Return the logits [chosen position, vocabulary] of the positions marked in ``chosen``, bool [batch, position],
    row by row.

    With guidance s they are ``un + (s + 1)(cond − un)``; the unconditional half of ``hidden`` follows the conditional
    one. For a family with a logit shift, a token is read one position to its left, and the first token at its own.

    Args:
        most: an upper bound on the number of marks; this many rows are returned, the extra ones of other
            positions. If None, the marks are counted.
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
    return check_finite(logits[:most].to(chosen.device))
