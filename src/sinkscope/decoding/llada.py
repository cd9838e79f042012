"""LLaDA's sampler as a generator of steps; token for token the published loop at temperature 0.

The vocabulary projection is computed only where a token can be committed: at masks up to the end of the block.
Confidences are scattered back into the full canvas before top-k, so that ties break as published.

Quirk: ``confidence_eos_eot_inf`` sets EOS on the noisy logits and EoT on the plain ones in one chained assignment.
At temperature 0 both names are one tensor, so both tokens lose confidence; above 0 only EoT does.
Quirk: a model may predict the mask token itself; it is committed, stays a mask, and a block may end unfinished.
Quirk: above temperature 0 the candidate is drawn with noise, its confidence is read without.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Batch, Step, publishing, row_generators
from sinkscope.decoding.settings import LLaDASettings
from sinkscope.models import Model

LEAST_ROWS = 32  # a product with fewer rows takes another path in the matrix library and rounds differently


def quotas(masks: int, steps: int) -> list[int]:
    """How many tokens each step of a block commits: evenly, the first steps one more."""
    base, more = divmod(masks, steps)
    return [base + (step < more) for step in range(steps)]


@torch.no_grad()
def llada_steps(model: Model, batch: Batch, settings: LLaDASettings) -> Iterator[Step]:
    """Writes ``settings.length`` tokens behind each prompt, one `Step` a forward call.

    Above temperature 0 noise is drawn per row and only where a token can be committed: equal to the published
    loop in distribution, not draw for draw.
    """
    mask_id = model.card.mask_id
    assert mask_id is not None
    rows, width = batch.tokens.shape
    masks = batch.tokens.new_full((rows, settings.length), mask_id)
    canvas = torch.cat([batch.tokens, masks], dim=1)
    real = torch.cat([batch.real, torch.ones_like(masks, dtype=torch.bool)], dim=1)
    padding = None if bool(real.all()) else real.long()
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    lengths = real.sum(-1)
    prompt = canvas != mask_id
    sources = row_generators(settings.seed, rows, canvas.device)
    blocks = settings.length // settings.block
    steps = settings.steps // blocks
    number = 0
    with publishing(model, batch, settings) as publisher:
        for block in range(blocks):
            start, stop = width + block * settings.block, width + (block + 1) * settings.block
            quota = [quotas(count, steps) for count in (canvas[:, start:stop] == mask_id).sum(-1).tolist()]
            for step in range(steps):
                masked = canvas == mask_id
                candidates = masked.clone()
                candidates[:, stop:] = False
                inputs, halves = canvas, 1
                if settings.guidance > 0:
                    inputs, halves = torch.cat([canvas, canvas.masked_fill(prompt, mask_id)]), 2
                publisher.before(inputs, inputs == mask_id, lengths.repeat(halves), range(rows))
                hidden = model.network.model(
                    input_ids=inputs,
                    attention_mask=None if padding is None else padding.repeat(halves, 1),
                    position_ids=positions.repeat(halves, 1),
                    use_cache=False,
                ).last_hidden_state
                logits = _project(model, hidden, candidates, settings)
                token, sure = _choose(model, logits, candidates, settings, sources)
                predicted = torch.full_like(canvas, -1).masked_scatter_(candidates, token)
                confidence = torch.full(canvas.shape, -torch.inf, dtype=sure.dtype, device=canvas.device).masked_scatter_(candidates, sure)
                written = torch.full_like(canvas, -1)
                for row in range(rows):
                    chosen = torch.topk(confidence[row], k=quota[row][step]).indices
                    written[row, chosen] = predicted[row, chosen]
                canvas = torch.where(written >= 0, written, canvas)
                shown = confidence.float().masked_fill(~candidates, torch.nan)
                publisher.after(written, predicted, shown)
                yield Step(number, canvas, written, shown)
                number += 1


def _project(model: Model, hidden: Tensor, candidates: Tensor, settings: LLaDASettings) -> Tensor:
    """Logits [candidate, vocabulary]; with guidance ``un + (s + 1)(cond − un)``."""
    rows = candidates.shape[0]
    needed = candidates.flatten().nonzero().squeeze(-1)
    if len(needed) < LEAST_ROWS:
        others = (~candidates.flatten()).nonzero().squeeze(-1)
        needed = torch.cat([needed, others[: LEAST_ROWS - len(needed)]])
    flat = hidden[:rows].flatten(0, 1)
    logits = model.network.lm_head(flat[needed])
    if settings.guidance > 0:
        unconditional = model.network.lm_head(hidden[rows:].flatten(0, 1)[needed])
        logits = unconditional + (settings.guidance + 1) * (logits - unconditional)
    return logits[: int(candidates.sum())]


def _choose(
    model: Model, logits: Tensor, candidates: Tensor, settings: LLaDASettings, sources: list[torch.Generator]
) -> tuple[Tensor, Tensor]:
    """The token each candidate position would take, and its confidence."""
    eos, eot = model.card.eos_id, _end_of_turn(model)
    if settings.logits_eos_inf and eos is not None:
        logits[:, eos] = -torch.inf
    counts = candidates.sum(-1).tolist()
    if settings.temperature > 0:
        noise = torch.cat(
            [
                torch.rand(count, logits.shape[-1], dtype=torch.float64, device=logits.device, generator=source)
                for count, source in zip(counts, sources, strict=True)
            ]
        )
        # Gumbel-max in float64 (arXiv 2409.02908), in the published form exp(logits) / (−log u)^T.
        token = (logits.double().exp() / (-noise.log()) ** settings.temperature).argmax(-1)
    else:
        token = logits.argmax(-1)
    if settings.confidence_eos_eot_inf:
        lost = [eot] if settings.temperature > 0 else [eos, eot]
        for index in lost:
            if index is not None:
                logits[:, index] = -torch.inf
    if settings.remasking == "random":
        # One draw a candidate, none for the padding, so that a row draws what it draws alone.
        uniform = [torch.rand(count, device=logits.device, generator=source) for count, source in zip(counts, sources, strict=True)]
        return token, torch.cat(uniform)
    return token, torch.softmax(logits, dim=-1).gather(-1, token[:, None]).squeeze(-1)


def _end_of_turn(model: Model) -> int | None:
    index = model.tokenizer.convert_tokens_to_ids("<|eot_id|>") if "<|eot_id|>" in model.tokenizer.get_vocab() else None
    return index if isinstance(index, int) else None
