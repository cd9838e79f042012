"""The block diffusion of SDAR and LLaDA 2: block after block, each by diffusion behind a cache of the finished ones.

A step is one forward call. Most denoise the running block; its queries are the block, its keys everything up to its
end. The others only *read*: the whole blocks of the prompt before the first block, and each block once it is finished.
They store keys and values and commit nothing. Prompts are written one after the other, as published.

LLaDA 2's published loop has no cache, but as no token sees a later block, finished blocks come out the same. Its steps
commit masks only, and writing stops after the block with an end-of-text token.

Quirk: SDAR, above temperature 0: a step commits as many tokens as its share says even where fewer masks are left, and
then replaces tokens that were written, the end of the prompt in the first block included. The published evaluation,
which temperature 0 follows, does not.
Quirk: at temperature 0, as in the published evaluation, confidences are probabilities of the whole vocabulary; above
it, of the tokens that top_k and top_p leave.
Quirk: the last block ends where a block ends, up to block − 1 tokens beyond the length.
Quirk: LLaDA 2: a block has at most as many steps as there are tokens to write.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.decoding.blocks import prompt_by_prompt, quotas
from sinkscope.decoding.canvas import Batch, Step, WorkMeter, publishing
from sinkscope.decoding.projection import check_finite
from sinkscope.decoding.settings import BlockDiffusionSettings, LLaDA2Settings, SDARSettings
from sinkscope.errors import CallError
from sinkscope.models import Model


def sdar_steps(model: Model, batch: Batch, settings: SDARSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    return block_diffusion_steps(model, batch, settings)


def llada2_steps(model: Model, batch: Batch, settings: LLaDA2Settings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    steps = min(settings.block_steps, settings.length)
    return block_diffusion_steps(model, batch, replace(settings, block_steps=steps))


@torch.no_grad()
def block_diffusion_steps(model: Model, batch: Batch, settings: BlockDiffusionSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    block = settings.block
    finals = [-(-(own + settings.length) // block) * block for own in batch.lengths]
    if max(finals) > model.card.max_positions:
        raise CallError(
            f"the canvas does not fit: the last block of {block} ends at token {max(finals)}, {model.limit}; "
            "shorten the prompt or --length"
        )
    most = max(final - own for final, own in zip(finals, batch.lengths, strict=True))
    ends = torch.tensor(finals, device="cpu")
    yield from prompt_by_prompt(model, batch, settings, lambda one, its: _write_one(model, one, its), most, ends)


@torch.no_grad()
def _write_one(model: Model, batch: Batch, settings: BlockDiffusionSettings) -> Iterator[Step]:
    """Yield the steps of a batch of one prompt, each with the tokens so far."""
    from transformers import DynamicCache

    mask_id, block = model.card.mask_id, settings.block
    assert mask_id is not None
    prompt = batch.tokens.shape[1]
    final = -(-(prompt + settings.length) // block) * block
    canvas = pad(batch.tokens, (0, final - prompt), value=mask_id)
    cache = DynamicCache(config=model.network.config)
    source = torch.Generator(canvas.device).manual_seed(settings.seed)
    turn = model.family.end_of_turn
    turns = [] if turn is None or turn >= model.card.vocabulary else [turn]
    ends = torch.tensor([*model.card.ends, *turns], device=canvas.device)
    meter = WorkMeter(model.network, 1)

    def step(start: int, stop: int, share: int | None) -> Step:
        """Denoise some positions behind the cache; without a share read them, which stores their keys and values."""
        reads, tokens = share is None, canvas[:, :stop].clone()
        masked = tokens == mask_id
        candidates = torch.zeros_like(masked)
        candidates[:, start:] = masked[:, start:] & (not reads)
        lengths = torch.tensor([stop], device="cpu")
        publisher.before(tokens, masked, lengths, [0], candidates=candidates, final_queries=reads)
        positions = torch.arange(start, stop, device=canvas.device)[None]
        hidden = model.network.model(
            input_ids=canvas[:, start:stop], position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        meter.add(0, stop - start, stop)
        predicted, written = (torch.full_like(tokens, -1) for _ in range(2))
        confidence = torch.full(tokens.shape, torch.nan, device=tokens.device, dtype=torch.float32)
        if share is not None:
            cache.crop(start - stop)
            meter.add_words(torch.ones_like(masked[:, start:]))
            logits = model.network.lm_head(hidden)[0]
            token, probability = _choose(check_finite(logits.to(tokens.device)), settings, source)
            chosen = _places(probability, masked[0, start:], share, settings)
            if settings.temperature == 0:
                chosen = chosen & masked[0, start:]
            written[0, start:] = torch.where(chosen, token, -1)
            either = chosen | masked[0, start:]
            predicted[0, start:] = torch.where(either, token, -1)
            confidence[0, start:] = torch.where(either, probability.float(), torch.nan)
            tokens = torch.where(written >= 0, written, tokens)
            canvas[:, :stop] = tokens
        publisher.after(written, predicted, confidence)
        return Step(0, tokens, written, confidence, meter)

    first = prompt // block * block
    with (
        model.network.model.blocks_of(block),
        publishing(model, batch, settings, final_length=final) as publisher,
    ):
        if first:
            yield step(0, first, None)
        for start in range(first, final, block):
            for share in quotas(block, settings.block_steps):
                if not bool((canvas[:, start : start + block] == mask_id).any()):
                    break
                yield step(start, start + block, share)
            yield step(start, start + block, None)
            if settings.stop and bool(torch.isin(canvas[:, prompt : start + block], ends).any()):
                return


def _choose(logits: Tensor, settings: BlockDiffusionSettings, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return each position's token, int64 [position], and its probability; ``logits`` are [position, vocabulary]."""
    if settings.temperature == 0:
        token = logits.argmax(-1)
        return token, torch.softmax(logits, dim=-1).gather(-1, token[:, None])[:, 0]
    if settings.temperature != 1:
        logits = logits / settings.temperature
    if settings.top_k > 0:
        least = logits.topk(min(settings.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if settings.top_p < 1:
        ordered, order = logits.sort(descending=True)
        beyond = (torch.softmax(ordered, dim=-1).cumsum(-1) > settings.top_p).roll(1, dims=-1)
        beyond[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    probabilities = torch.softmax(logits, dim=-1)
    token = torch.multinomial(probabilities, 1, generator=source)
    return token[:, 0], probabilities.gather(-1, token)[:, 0]


def _places(probability: Tensor, masked: Tensor, share: int, settings: BlockDiffusionSettings) -> Tensor:
    """Return which positions of a block a step commits, bool [position], by the probabilities of their tokens."""
    chosen = torch.zeros_like(masked)
    if settings.remasking == "sequential":
        first = int(masked.nonzero()[0])
        chosen[first : first + share] = True
        return chosen
    confidence = torch.where(masked, probability, -torch.inf)
    sure = confidence > settings.threshold
    if settings.remasking == "dynamic" and int(sure.sum()) >= share:
        return sure
    share = share if settings.replaces else min(share, int(masked.sum()))
    chosen[torch.topk(confidence, share).indices] = True
    return chosen
