"""The loop that LLaDA and MMaDA share: blocks one by one, in each step the surest tokens of a block are committed."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sinkscope.decoding.caches.reader import reading
from sinkscope.decoding.canvas import (
    Batch,
    Layout,
    Step,
    WorkMeter,
    masked_canvas,
    publishing,
    row_generators,
    scattered,
)
from sinkscope.decoding.parallel import prompt_by_prompt, surest, waiting_would_be_seen
from sinkscope.decoding.projection import Remaining, project, with_unconditional
from sinkscope.decoding.settings import BlockSettings
from sinkscope.models import Model


def quotas(masks: int, steps: int) -> list[int]:
    """How many tokens each step of a block commits: evenly, the first steps one more."""
    base, more = divmod(masks, steps)
    return [base + (step < more) for step in range(steps)]


@dataclass(frozen=True)
class BlockRule:
    """The differences of the two.

    Attributes:
        precision: dtype in which the softmax of a confidence is taken; None is that of the logits.
        never: tokens that are not predicted at all.
        late: tokens that lose their confidence once the candidates are chosen.
        quotas: how many tokens each step of a block commits, by its masks and steps.
    """

    precision: torch.dtype | None = None
    never: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    quotas: Callable[[int, int], list[int]] = quotas


@torch.no_grad()
def block_steps(model: Model, batch: Batch, settings: BlockSettings, rule: BlockRule) -> Iterator[Step]:
    """Writes ``settings.length`` tokens behind each prompt, one `Step` a forward call."""
    mask_id = model.card.mask_id
    assert mask_id is not None
    canvas, layout = masked_canvas(batch, settings.length, mask_id)
    rows, width = batch.tokens.shape
    prompt = canvas != mask_id
    sources = row_generators(settings.seed, rows, canvas.device)
    blocks, end = math.ceil(settings.length / settings.block), width + settings.length
    parallel = bool(settings.threshold or settings.factor)
    if parallel and waiting_would_be_seen(model, batch):
        yield from prompt_by_prompt(model, batch, settings, lambda one, its: block_steps(model, one, its, rule))
        return
    steps = settings.block if parallel else math.ceil(settings.steps / blocks)
    number, meter = 0, WorkMeter(model.network, rows)
    with reading(model, batch, layout, meter, settings) as reader, publishing(model, batch, settings) as publisher:
        if parallel or reader.double:
            rule = replace(rule, precision=torch.float64)
        leftward = settings.block_order == "right_to_left"
        for block in reversed(range(blocks)) if leftward else range(blocks):
            start = width + block * settings.block
            stop = min(start + settings.block, end)
            reader.begin_block(start, stop)
            remaining = Remaining(late=None if settings.temperature == 0 and settings.remasking != "random" else False)
            masks = [] if parallel else (canvas[:, start:stop] == mask_id).sum(-1).tolist()
            quota = [rule.quotas(count, steps) for count in masks]
            writing = None  # all rows
            for step in range(steps if parallel else max(map(len, quota))):
                if parallel:
                    writing = (canvas[:, start:stop] == mask_id).any(-1).nonzero().flatten().tolist()
                    if not writing:
                        break
                masked = canvas == mask_id
                candidates = masked.clone()
                candidates[:, slice(0, start) if leftward else slice(stop, None)] = False
                places = reader.open_places(canvas, masked)
                if places is not None:
                    candidates &= places
                if parallel:
                    candidates &= masked[:, start:stop].any(-1, keepdim=True)
                inputs = with_unconditional(canvas, prompt, mask_id, settings.guidance)
                halves = len(inputs) // rows
                lengths, open_places = layout.lengths.repeat(halves), candidates.repeat(halves, 1)
                publisher.before(inputs, inputs == mask_id, lengths, range(rows), candidates=open_places)
                most = remaining.most(candidates)
                meter.add_words(candidates, halves)
                hidden = reader.read(inputs, writing, publisher.listened)
                if reader.surveys():
                    meter.add_words(masked & ~candidates)
                    reader.survey(project(model, hidden, masked, layout), masked)
                logits = project(model, hidden, candidates, layout, settings.guidance, most)
                reader.judge(logits, candidates)
                token, sure = _choose(logits, candidates, layout, settings, rule, sources, writing)
                predicted, confidence = scattered(candidates, token, sure)
                written = torch.full_like(canvas, -1)
                if parallel:
                    written = torch.where(surest(confidence, settings.threshold, settings.factor), predicted, written)
                else:
                    for row, first in enumerate(layout.starts):
                        chosen = first + torch.topk(confidence[row, first:], k=quota[row][step]).indices
                        written[row, chosen] = predicted[row, chosen]
                canvas = torch.where(written >= 0, written, canvas)
                shown = confidence.float().masked_fill(~candidates, torch.nan)
                reader.committed(written, shown)
                publisher.after(written, predicted, shown)
                yield Step(number, canvas, written, shown, meter)
                number += 1
            reader.end_block()


def _choose(
    logits: Tensor,
    candidates: Tensor,
    layout: Layout,
    settings: BlockSettings,
    rule: BlockRule,
    sources: list[torch.Generator],
    writing: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """Return each candidate's token and confidence; ``writing`` are the rows with masks in the block."""
    for lost in rule.never:
        logits[:, lost] = -torch.inf
    if settings.temperature > 0:
        noise = _uniform(candidates, layout, sources, writing, (logits.shape[-1],), torch.float64)
        # Gumbel-max in float64 (arXiv 2409.02908), in the published form exp(logits) / (−log u)^T.
        token = (logits.double().exp() / (-noise.log()) ** settings.temperature).argmax(-1)
    else:
        token = logits.argmax(-1)
    if settings.remasking == "random":
        return token, _uniform(candidates, layout, sources, writing, (), torch.float32)
    for lost in rule.late:
        logits[:, lost] = -torch.inf
    return token, torch.softmax(logits, dim=-1, dtype=rule.precision).gather(-1, token[:, None]).squeeze(-1)


def _uniform(
    candidates: Tensor,
    layout: Layout,
    sources: list[torch.Generator],
    writing: list[int] | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Draws [candidate, …] in the published order: each row for its whole canvas, without its padding, in one call.

    A row that waits for the others of its batch draws nothing, as it would not if it were alone.
    """
    drawn = []
    for row in range(len(candidates)) if writing is None else writing:
        own = candidates[row, layout.starts[row] :]
        drawn.append(torch.rand(len(own), *shape, dtype=dtype, device=own.device, generator=sources[row])[own])
    return torch.cat(drawn)
