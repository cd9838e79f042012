"""The samplers of LLaDA and MMaDA, token for token and draw for draw the published loops: blocks one by one, in each
step the surest tokens of a block are committed.

Confidences are scattered back into the full canvas before top-k, so that ties break as published. Each row draws from
its own seed what the published loop draws for it alone: noise for the whole canvas, then the uniform confidences.

Quirk: ``confidence_eos_eot_inf`` sets EOS on the noisy logits and EoT on the plain ones in one chained assignment.
At temperature 0 both names are one tensor, so both tokens lose confidence; above 0 only EoT does.
Quirk: a model may predict the mask token itself; it is committed, stays a mask, and a block may end unfinished.
Quirk: above temperature 0 the candidate is drawn with noise, its confidence is read without.
Quirk: MMaDA's published loop drops the padding mask under guidance. Not kept: a row writes what it would write alone.

Parallel decoding commits every mask that is sure enough (Wu et al., 2025, Fast-dLLM, section 3.3; NVlabs/Fast-dLLM,
llada/generate.py for the threshold; the factor follows the paper). It finishes the blocks of some rows first. As a
recording would hold the steps in which a row waits, watched prompts are written one after the other.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import current_session
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
from sinkscope.decoding.projection import Remaining, project, with_unconditional
from sinkscope.decoding.settings import BlockSettings, LLaDASettings, MMaDASettings
from sinkscope.models import Model


def llada_steps(model: Model, batch: Batch, settings: LLaDASettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    eos, vocabulary = model.card.eos_id, model.tokenizer.get_vocab()
    eot = model.tokenizer.convert_tokens_to_ids("<|eot_id|>") if "<|eot_id|>" in vocabulary else None
    lost = [] if not settings.confidence_eos_eot_inf else [eot] if settings.temperature > 0 else [eos, eot]
    never = () if eos is None or not settings.logits_eos_inf else (eos,)
    late = tuple(token for token in lost if token is not None)
    return block_steps(model, batch, settings, BlockRule(never=never, late=late))


def mmada_steps(model: Model, batch: Batch, settings: MMaDASettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    return block_steps(model, batch, settings, BlockRule(precision=torch.float64))


def quotas(masks: int, steps: int) -> list[int]:
    """How many tokens each step of a block commits: evenly, the first steps one more."""
    base, more = divmod(masks, steps)
    return [base + (step < more) for step in range(steps)]


@dataclass(frozen=True)
class BlockRule:
    """The differences of the samplers that write in blocks."""

    precision: torch.dtype | None = None  # in which the softmax of a confidence is taken; None is that of the logits
    never: tuple[int, ...] = ()  # tokens that are not predicted at all
    late: tuple[int, ...] = ()  # tokens that lose their confidence once the candidates are chosen
    quotas: Callable[[int, int], list[int]] = quotas  # how many tokens each step of a block commits


@torch.no_grad()
def block_steps(model: Model, batch: Batch, settings: BlockSettings, rule: BlockRule) -> Iterator[Step]:
    """Writes ``settings.length`` tokens behind each prompt, one `Step` a forward call."""
    parallel = bool(settings.threshold or settings.factor)
    if parallel and len(batch.tokens) > 1 and current_session(model.network) is not None:
        yield from prompt_by_prompt(model, batch, settings, lambda one, its: block_steps(model, one, its, rule))
        return
    mask_id, (canvas, layout) = model.mask_id, masked_canvas(batch, settings.length, model.mask_id)
    rows, width = batch.tokens.shape
    prompt = canvas != mask_id
    sources = row_generators(settings.seed, rows, canvas.device)
    blocks, end = math.ceil(settings.length / settings.block), width + settings.length
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
            remaining = Remaining(late=settings.temperature == 0 and settings.remasking != "random")
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

    def uniform(*shape: int, dtype: torch.dtype) -> Tensor:
        """Draw [candidate, …] in the published order: each row for its canvas, without padding, in one call."""
        drawn = []
        for row in range(len(candidates)) if writing is None else writing:
            own = candidates[row, layout.starts[row] :]
            drawn.append(torch.rand(len(own), *shape, dtype=dtype, device=own.device, generator=sources[row])[own])
        return torch.cat(drawn)

    for lost in rule.never:
        logits[:, lost] = -torch.inf
    if settings.temperature > 0:
        noise = uniform(logits.shape[-1], dtype=torch.float64)
        # Gumbel-max in float64 (arXiv 2409.02908), in the published form exp(logits) / (−log u)^T.
        token = (logits.double().exp() / (-noise.log()) ** settings.temperature).argmax(-1)
    else:
        token = logits.argmax(-1)
    if settings.remasking == "random":
        return token, uniform(dtype=torch.float32)
    for lost in rule.late:
        logits[:, lost] = -torch.inf
    return token, torch.softmax(logits, dim=-1, dtype=rule.precision).gather(-1, token[:, None]).squeeze(-1)


def surest(confidence: Tensor, threshold: float, factor: float = 0.0) -> Tensor:
    """Return which candidates a step of parallel decoding commits, bool [batch, position]; the surest one always
    (Fast-dLLM, algorithm 1). ``confidence`` is −∞ where there is no candidate. A ``factor`` commits the n surest, for
    the largest n up to which (n + 1)(1 − p_n) stays below it.
    """
    if factor:
        ordered, order = confidence.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(1, confidence.shape[-1] + 1, device=confidence.device)
        enough = ((rank + 1) * (1 - ordered) < factor).cumprod(dim=-1).bool()
        chosen = torch.zeros_like(enough).scatter(-1, order, enough)
    else:
        chosen = confidence >= threshold
    return chosen.scatter(-1, confidence.argmax(-1, keepdim=True), True) & confidence.isfinite()


def prompt_by_prompt(
    model: Model, batch: Batch, settings: Any, write: Callable[[Batch, Any], Iterator[Step]], ends: Any = None
) -> Iterator[Step]:
    """Yield the steps of one prompt after the other, in the coordinates of the batch; ``ends`` are `Step.lengths`."""
    length = settings.length if ends is None else int((ends - torch.tensor(batch.lengths, device="cpu")).max())
    canvas, _ = masked_canvas(batch, length, model.mask_id)
    meter, number = WorkMeter(model.network, len(canvas)), 0
    for row, own in enumerate(batch.lengths):
        first, mine = batch.tokens.shape[1] - own, slice(row, row + 1)
        alone = Batch(batch.tokens[mine, first:], batch.real[mine, first:], batch.texts[mine])
        for step in write(alone, replace(settings, seed=settings.seed + row)):
            assert step.meter is not None
            here = slice(first, first + step.tokens.shape[1])
            canvas, written = canvas.clone(), torch.full_like(canvas, -1)
            confidence = torch.full(canvas.shape, torch.nan, device=canvas.device, dtype=step.confidence.dtype)
            canvas[row, here], written[row, here] = step.tokens[0], step.written[0]
            confidence[row, here] = step.confidence[0]
            meter.take(row, step.meter)
            yield Step(number, canvas, written, confidence, meter, ends)
            number += 1
