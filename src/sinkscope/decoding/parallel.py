"""Parallel decoding: a step commits every mask that is sure enough, instead of a number that was set beforehand.

Source: Wu et al., 2025 (Fast-dLLM), section 3.3; NVlabs/Fast-dLLM, llada/generate.py for the threshold. The factor
follows the paper: the public code at hand has none.

It finishes the blocks of some rows before those of others. A recording would hold the steps in which a row waits, and a
rule that hides keys would count them: such prompts are written one after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from sinkscope.attention import current_session
from sinkscope.decoding.canvas import Batch, Step, WorkMeter, masked_canvas
from sinkscope.decoding.settings import BlockSettings, DreamSettings
from sinkscope.models import Model

SettingsT = TypeVar("SettingsT", bound=BlockSettings | DreamSettings)


def surest(confidence: Tensor, threshold: float, factor: float = 0.0) -> Tensor:
    """Return which candidates a step of parallel decoding commits, bool [batch, position]; the surest one always
    (Fast-dLLM, algorithm 1).

    Args:
        confidence: [batch, position], −∞ where there is no candidate.
        threshold: all candidates of at least this confidence are committed.
        factor: where it is not 0, the n surest, for the largest n up to which (n + 1)(1 − p_n) stays below it.
    """
    if factor:
        ordered, order = confidence.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
        enough = ((rank + 1) * (1 - ordered) < factor).cumprod(dim=-1).bool()
        chosen = torch.zeros_like(enough).scatter(-1, order, enough)
    else:
        chosen = confidence >= threshold
    return chosen.scatter(-1, confidence.argmax(-1, keepdim=True), True) & confidence.isfinite()


def waiting_would_be_seen(model: Model, batch: Batch) -> bool:
    """Return whether a batch has several rows and somebody watches or hides."""
    return len(batch.tokens) > 1 and current_session(model.network) is not None


def prompt_by_prompt(
    model: Model, batch: Batch, settings: SettingsT, write: Callable[[Batch, SettingsT], Iterator[Step]]
) -> Iterator[Step]:
    """Yield the steps of one prompt after the other, in the coordinates of the batch.

    Args:
        write: yields the steps of a batch of one prompt.
    """
    mask_id = model.card.mask_id
    assert mask_id is not None
    canvas, _ = masked_canvas(batch, settings.length, mask_id)
    meter, number = WorkMeter(model.network, len(canvas)), 0
    for row, own in enumerate(batch.lengths):
        here = slice(batch.tokens.shape[1] - own, None)
        mine = slice(row, row + 1)
        alone = Batch(batch.tokens[mine, here], batch.real[mine, here], batch.texts[mine])
        for step in write(alone, replace(settings, seed=settings.seed + row)):
            assert step.meter is not None
            canvas = _placed(canvas, row, here, step.tokens)
            written = _placed(torch.full_like(canvas, -1), row, here, step.written)
            unknown = torch.full(canvas.shape, torch.nan, device=canvas.device, dtype=step.confidence.dtype)
            meter.take(row, step.meter)
            yield Step(number, canvas, written, _placed(unknown, row, here, step.confidence), meter)
            number += 1


def _placed(whole: Tensor, row: int, here: slice, one: Tensor) -> Tensor:
    whole = whole.clone()
    whole[row, here] = one[0]
    return whole
