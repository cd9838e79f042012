"""Hidden states of canvases, and their logits at chosen positions only, with padding, guidance and logit shift."""

import math
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import mask_for, upload
from sinkscope.decoding.canvas import Layout, Step, WorkMeter, seen_of
from sinkscope.decoding.captured import captured_steps
from sinkscope.errors import ModelError
from sinkscope.models import Model

LEAST_ROWS = 32  # matrix libraries compute a product with fewer rows in another way, which rounds differently


def check_finite(logits: Tensor) -> Tensor:
    """Return logits, or raise ModelError; on a GPU without a check, because reading one from it would wait."""
    on_the_host = logits.device.type == "cpu" and not logits.is_cuda
    if on_the_host and logits.numel() and not math.isfinite(most := float(logits.detach().amax())):
        raise ModelError(
            f"expected finite logits, found {most}; its weights are damaged, or overflow in {logits.dtype}"
        )
    return logits


def finite_steps(model: Model, steps: Iterable[Step]) -> Generator[Step, None, None]:
    """Yield the steps of a sampler; `ModelError` for logits that are not finite, on a GPU after the last step."""
    number, flaws = 0, []
    try:
        for step in steps:
            if step.confidence.device.type != "cpu":
                flaws.append(has_flaw(step, model.card.mask_id))
            yield step
            number += 1
    except ModelError as error:
        raise ModelError(f"{model.card.name}, step {number}: {error}") from error
    if flaws and bool((flawed := torch.stack(flaws)).any()):
        raise ModelError(
            f"{model.card.name}, step {int(flawed.int().argmax())}: expected finite logits, found others; see "
            "`sinkscope check`"
        )


def has_flaw(step: Step, mask_id: int | None) -> Tensor:
    """Return whether a token was committed without a finite confidence, bool []; masks that are put back have none."""
    commits = (step.written >= 0) & (step.written != (-1 if mask_id is None else mask_id))
    return (commits & ~step.confidence.isfinite()).any()


def with_unconditional(canvas: Tensor, prompt: Tensor, mask_id: int, guidance: float) -> Tensor:
    """Return the input of the network: the canvas, and with guidance the canvas with a masked prompt behind it."""
    return canvas if guidance == 0 else torch.cat([canvas, canvas.masked_fill(prompt, mask_id)])


def hidden_states(model: Model, inputs: Tensor, layout: Layout) -> Tensor:
    """Return the last hidden states [rows, position, width] of one or several copies of a batch of canvases."""
    copies = len(inputs) // len(layout.starts)
    seen = layout.seen if layout.seen is None or copies == 1 else seen_of(layout.real.repeat(copies, 1))
    run, steps = partial(stored_call, model), captured_steps(model.network)
    return (run if steps is None else partial(steps, run))(inputs, layout.positions.repeat(copies, 1), seen)


def stored_call(model: Model, tokens: Tensor, positions: Tensor, seen: Tensor | None, store: Any = None) -> Tensor:
    """Return the last hidden states of tokens, [row, query, width], which read and write stored keys and values."""
    cache = {"use_cache": False} if store is None else {"use_cache": True, "past_key_values": store}
    mask = mask_for(model.network, seen)
    output = model.network.model(input_ids=tokens, attention_mask=mask, position_ids=positions, **cache)
    return output.last_hidden_state.to(tokens.device)


class Remaining:
    """An upper bound on the number of candidates of a canvas, while a block is written and they only get fewer."""

    def __init__(self, late: bool) -> None:
        self._late = late
        self._before: tuple[Tensor, Any] | None = None  # its copy on the host, and the event after which it is there

    def most(self, candidates: Tensor) -> int:
        """Return a number that is at least the number of marks in ``candidates``, bool [batch, position]."""
        counted, before = candidates.sum(), self._before
        if not (self._late and candidates.is_cuda):
            return int(counted)
        here = torch.empty((), dtype=counted.dtype, device="cpu", pin_memory=True)
        here.copy_(counted, non_blocking=True)
        self._before = here, torch.cuda.current_stream(counted.device).record_event()
        if before is None:
            return int(counted)
        before[1].synchronize()
        return int(before[0])


def project(
    model: Model, hidden: Tensor, chosen: Tensor, layout: Layout, guidance: float = 0.0, most: int | None = None
) -> Tensor:
    """Return the logits [chosen position, vocabulary] of the positions marked in ``chosen``, row by row.

    With guidance s they are ``un + (s + 1)(cond − un)``; the unconditional half of ``hidden`` follows the conditional
    one. For a family with a logit shift, a token is read one position to its left, and the first token at its own.
    ``most`` bounds the number of marks, which are counted by default; so many rows are returned, extra ones last.
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


def within_top_p(logits: Tensor, top_p: float, others: float = -math.inf) -> Tensor:
    """Return logits of which the least set of tokens that exceeds ``top_p`` stays, and the others are one number."""
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    beyond = (torch.softmax(ordered, dim=-1).cumsum(-1) > top_p).roll(1, dims=-1)
    beyond[:, 0] = False
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), others)


def within_top_k(logits: Tensor, top_k: int, others: float = -math.inf) -> Tensor:
    """Return logits of which the ``top_k`` largest stay, all for 0, and the others are one number."""
    if not top_k:
        return logits
    return logits.masked_fill(logits < logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:], others)


class WholeReader:
    """Computes all positions in every step; readers with a cache are subclasses."""

    double = False  # whether confidences are to be taken in float64

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter) -> None:
        self.model, self.layout, self.meter = model, layout, meter
        self._lengths: list[int] = layout.lengths.tolist()
        self._hidden: Tensor | None = None

    def begin_block(self, start: int, stop: int) -> None:
        """Begin a block."""

    def end_block(self) -> None:
        """Raise `CallError` where a policy has left places of the block that ends uncommitted."""

    def open_places(self, tokens: Tensor, masked: Tensor) -> Tensor | None:
        """Return where tokens may be committed in the next step, bool [batch, position]; None for everywhere."""
        return None

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        """Return hidden states [row of the inputs, position, width] of canvases, with guidance twice."""
        count = len(self._lengths)
        copies, rows = len(inputs) // count, range(count) if rows is None else rows
        for row in rows:
            self.meter.add(row, self._lengths[row], self._lengths[row], copies)
        if together or len(rows) == count:
            self._hidden = hidden_states(self.model, inputs, self.layout)
            return self._hidden
        assert self._hidden is not None
        chosen = [copy * count + row for copy in range(copies) for row in rows]
        self._hidden[chosen] = hidden_states(self.model, inputs[chosen], rows_of(self.layout, list(rows)))
        return self._hidden

    def surveys(self) -> bool:
        """Whether the next step's confidence of every mask is wanted, see `survey`."""
        return False

    def survey(self, logits: Tensor, masked: Tensor) -> None:
        """Note the logits of all masks in the step that was read, [mask, vocabulary]."""

    def judge(self, logits: Tensor, candidates: Tensor) -> None:
        """Note the logits of the candidates of the step that was read, [candidate, vocabulary]."""

    def committed(self, written: Tensor, confidence: Tensor) -> None:
        """Note the tokens of a step, −1 elsewhere, and confidences of the candidates, NaN elsewhere."""


def rows_of(layout: Layout, rows: list[int]) -> Layout:
    """Return the layout of some rows of a batch."""
    real, starts = layout.real[rows], tuple(layout.starts[row] for row in rows)
    seen = None if layout.seen is None else seen_of(real)
    return Layout(real, seen, layout.positions[rows], layout.lengths[rows], starts)
