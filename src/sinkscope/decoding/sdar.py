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
from typing import Any

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
def block_diffusion_steps(
    model: Model, batch: Batch, settings: Any, writer: type["BlockWriter"] | None = None
) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    kind = writer or BlockWriter
    finals = [kind.end(own, settings) for own in batch.lengths]
    if max(finals) > model.card.max_positions:
        raise CallError(
            f"the canvas does not fit: the last block of {settings.block} ends at token {max(finals)}, {model.limit}; "
            "shorten the prompt or --length"
        )
    most = max(final - own for final, own in zip(finals, batch.lengths, strict=True))
    ends = torch.tensor(finals, device="cpu")
    yield from prompt_by_prompt(model, batch, settings, lambda one, its: kind(model, one, its).steps(), most, ends)


class BlockWriter:
    """Writes a batch of one prompt behind a cache of the finished blocks."""

    def __init__(self, model: Model, batch: Batch, settings: Any) -> None:
        from transformers import DynamicCache

        assert model.card.mask_id is not None
        self.model, self.batch, self.settings, self.mask_id = model, batch, settings, model.card.mask_id
        self.prompt = batch.tokens.shape[1]
        self.final = self.end(self.prompt, settings)
        self.canvas = pad(batch.tokens, (0, self.final - self.prompt), value=self.mask_id)
        self.cache = DynamicCache(config=model.network.config)
        turn = model.family.end_of_turn
        turns = [] if turn is None or turn >= model.card.vocabulary else [turn]
        self.ends = torch.tensor([*model.card.ends, *turns], device=self.canvas.device)
        self.source = torch.Generator(self.canvas.device).manual_seed(settings.seed)
        self.meter = WorkMeter(model.network, 1)

    @staticmethod
    def end(prompt: int, settings: Any) -> int:
        """Return where the last block ends."""
        return -(-(prompt + settings.length) // settings.block) * settings.block

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """Yield each call with the tokens so far."""
        block, canvas = self.settings.block, self.canvas
        first = self.prompt // block * block
        with (
            self.model.network.model.blocks_of(block),
            publishing(self.model, self.batch, self.settings) as self.publisher,
        ):
            if first:
                yield self.call(0, first)
            for start in range(first, self.final, block):
                for share in quotas(block, self.settings.block_steps):
                    if not bool((canvas[:, start : start + block] == self.mask_id).any()):
                        break
                    yield self.call(start, start + block, share)
                yield self.call(start, start + block)
                if self.settings.stop and bool(torch.isin(canvas[:, self.prompt : start + block], self.ends).any()):
                    return

    def call(self, start: int, stop: int, share: int | None = None) -> Step:
        """Denoise some positions behind the cache; without a share read them, which stores their keys and values."""
        reads, places = share is None, self._candidates(start, stop, share)
        tokens, inputs = self.canvas[:, : max(stop, places.stop)].clone(), self._inputs(stop)
        candidates = torch.zeros_like(tokens, dtype=torch.bool)
        candidates[:, places] = tokens[:, places] == self.mask_id
        lengths, every = torch.full((len(inputs),), stop, device="cpu"), candidates.expand(len(inputs), -1)
        self.publisher.before(inputs, inputs == self.mask_id, lengths, [0], candidates=every, final_queries=reads)
        hidden = self._read(inputs, start, reads)
        self.meter.add(0, stop - start, stop, len(inputs))
        predicted, written = (torch.full_like(tokens, -1) for _ in range(2))
        confidence = torch.full(tokens.shape, torch.nan, device=tokens.device, dtype=torch.float32)
        if not reads:
            self.cache.crop(start - stop)
        if places.start < places.stop:
            projected = torch.ones_like(candidates[:, start:stop][:, -self.settings.block :])
            self.meter.add_words(projected, len(inputs))
            token, probability, chosen = self._choose(hidden, candidates[0, start:], share)
            written[0, start:] = torch.where(chosen, token, -1)
            either = chosen | candidates[0, start:]
            predicted[0, start:] = torch.where(either, token, -1)
            confidence[0, start:] = torch.where(either, probability.float(), torch.nan)
            tokens = torch.where(written >= 0, written, tokens)
            self.canvas[:, : tokens.shape[1]] = tokens
        self.publisher.after(written, predicted, confidence)
        return Step(0, tokens, written, confidence, self.meter)

    def _candidates(self, start: int, stop: int, share: int | None) -> slice:
        """Return the places whose masks a call may commit; a call that reads commits none."""
        return slice(stop if share is None else start, stop)

    def _inputs(self, stop: int) -> Tensor:
        """Return the canvases of a call, int64 [copy, position]."""
        return self.canvas[:, :stop].clone()

    def _read(self, inputs: Tensor, start: int, reads: bool) -> Tensor:
        """Return the hidden states [copy, query, width] of the positions behind the cache."""
        positions = torch.arange(start, inputs.shape[1], device=inputs.device)[None]
        return self.model.network.model(
            input_ids=inputs[:, start:], position_ids=positions, past_key_values=self.cache, use_cache=True
        ).last_hidden_state

    def _choose(self, hidden: Tensor, masked: Tensor, share: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return each position's token and its probability, and which positions are committed, each [position]."""
        logits = self.model.network.lm_head(hidden)[0].to(masked.device)
        token, probability = draw(check_finite(logits), self.settings, self.source)
        chosen = _places(probability, masked, share, self.settings)
        return token, probability, chosen & masked if self.settings.temperature == 0 else chosen


def draw(logits: Tensor, settings: Any, source: torch.Generator) -> tuple[Tensor, Tensor]:
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
