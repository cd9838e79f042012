"""SDAR's sampler as a generator of steps: block after block, each by diffusion behind a cache of the finished ones.

A step is one forward call. Most denoise the running block; its queries are the block, its keys everything up to its
end. The others only *read*: the whole blocks of the prompt before the first block, and each block once it is finished.
They store keys and values and commit nothing. The published code writes one prompt at a time, and so does this: a list
of prompts is written one after the other.

Quirk: above temperature 0 a step commits as many tokens as its share says even where fewer masks are left, and then
replaces tokens that were written, the end of the prompt in the first block included. The published evaluation, which
temperature 0 follows, does not.
Quirk: at temperature 0, as in the published evaluation, confidences are probabilities of the whole vocabulary; above
it, of the tokens that top_k and top_p leave.
Quirk: the last block ends where a block ends, up to block − 1 tokens beyond the length.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.decoding.blocks import quotas
from sinkscope.decoding.canvas import Batch, Publisher, Step, WorkMeter, publishing
from sinkscope.decoding.projection import check_finite
from sinkscope.decoding.settings import BlockDiffusionSettings, SDARSettings
from sinkscope.errors import CallError
from sinkscope.models import Model


def sdar_steps(model: Model, batch: Batch, settings: SDARSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    return block_diffusion_steps(model, batch, settings)


@torch.no_grad()
def block_diffusion_steps(
    model: Model, batch: Batch, settings: Any, writer: type["BlockWriter"] | None = None
) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    mask_id, block, writer = model.card.mask_id, settings.block, writer or BlockWriter
    assert mask_id is not None
    width, lengths = batch.tokens.shape[1], batch.lengths
    finals = [writer.end(own, settings) for own in lengths]
    if max(finals) > model.card.max_positions:
        raise CallError(
            f"the canvas does not fit: the last block of {block} ends at token {max(finals)}, {model.limit}; "
            "shorten the prompt or --length"
        )
    most = max(final - own for final, own in zip(finals, lengths, strict=True))
    canvas = pad(batch.tokens, (0, most), value=mask_id)
    ends = torch.tensor(finals, device="cpu")
    meter, number = WorkMeter(model.network, len(lengths)), 0
    for row, own in enumerate(lengths):
        mine, here = slice(row, row + 1), slice(width - own, None)
        alone = Batch(batch.tokens[mine, here], batch.real[mine, here], batch.texts[mine])
        seeded = replace(settings, seed=settings.seed + row)
        with publishing(model, alone, seeded, final_length=finals[row]) as publisher:
            one = writer(model, alone, seeded, finals[row], publisher)
            for tokens, written, confidence, queries in one.steps():
                meter.add(row, queries, one.keys, writer.copies(settings))
                if not confidence.isnan().all():
                    projected = torch.ones_like(written[:, -block:], dtype=torch.bool)
                    meter.add_words(pad(projected, (0, 0, row, len(lengths) - row - 1)))
                stop = width - own + tokens.shape[1]
                canvas[row, width - own : stop] = tokens[0]
                whole = torch.full_like(canvas, -1)
                whole[row, width - own : stop] = written[0]
                sure = torch.full(canvas.shape, torch.nan, device=canvas.device, dtype=torch.float32)
                sure[row, width - own : stop] = confidence[0]
                yield Step(number, canvas.clone(), whole, sure, meter, ends)
                number += 1


class BlockWriter:
    """Writes one prompt block after block behind a cache of the finished ones."""

    def __init__(self, model: Model, batch: Batch, settings: Any, final: int, publisher: Publisher) -> None:
        from transformers import DynamicCache

        self.model, self.settings, self.publisher = model, settings, publisher
        mask_id = model.card.mask_id
        assert mask_id is not None
        self.mask_id, self.prompt, self.final = mask_id, batch.tokens.shape[1], final
        self.canvas = pad(batch.tokens, (0, final - self.prompt), value=mask_id)
        self.cache, self.keys = DynamicCache(config=model.network.config), 0  # keys: of the last call
        self.source = torch.Generator(self.canvas.device).manual_seed(settings.seed)
        turn = model.family.end_of_turn
        turns = [] if turn is None or turn >= model.card.vocabulary else [turn]
        self.ends = torch.tensor([*model.card.ends, *turns], device=self.canvas.device)

    @staticmethod
    def end(prompt: int, settings: Any) -> int:
        """Return where the last block ends."""
        return -(-(prompt + settings.length) // settings.block) * settings.block

    @staticmethod
    def copies(settings: Any) -> int:
        """Return how many canvases of a prompt are in a call."""
        return 1

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        """Yield for each call the tokens so far, those committed, their confidences, and its number of queries."""
        with self.model.network.model.blocks_of(self.settings.block):
            yield from self._steps()

    def _steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        block = self.settings.block
        first = self.prompt // block * block
        if first:
            yield self._read(0, first)
        shares = quotas(block, self.settings.block_steps)
        for start in range(first, self.final, block):
            for share in shares:
                if not bool((self.canvas[:, start : start + block] == self.mask_id).any()):
                    break
                yield self._denoise(start, start + block, share)
            yield self._read(start, start + block)
            if self.settings.stop and bool(torch.isin(self.canvas[:, self.prompt : start + block], self.ends).any()):
                return

    def _forward(self, start: int, stop: int, keep: bool) -> Tensor:
        """Compute hidden states of some positions behind the cache; ``keep`` stores their keys and values."""
        hidden = self.model.network.model(
            input_ids=self.canvas[:, start:stop],
            position_ids=torch.arange(start, stop, device=self.canvas.device)[None],
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        if not keep:
            self.cache.crop(start - stop)
        return hidden

    def _read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, int]:
        tokens, self.keys = self.canvas[:, :stop].clone(), stop
        lengths, nothing = torch.tensor([stop], device="cpu"), torch.full_like(tokens, -1)
        self.publisher.before(tokens, tokens == self.mask_id, lengths, [0], candidates=nothing >= 0, final_queries=True)
        self._forward(start, stop, keep=True)
        unknown = torch.full(tokens.shape, torch.nan, device=tokens.device, dtype=torch.float32)
        self.publisher.after(nothing, nothing, unknown)
        return tokens, nothing, unknown, stop - start

    def _denoise(
        self, start: int, stop: int, share: int, places: slice | None = None
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Compute a block, and commit some of its masks, those in ``places`` if given."""
        tokens, self.keys = self.canvas[:, :stop].clone(), stop
        masked = tokens == self.mask_id
        candidates, places = torch.zeros_like(masked), places or slice(start, stop)
        candidates[:, places] = masked[:, places]
        lengths = torch.tensor([stop], device="cpu")
        self.publisher.before(tokens, masked, lengths, [0], candidates=candidates, final_queries=False)
        token, probability, chosen = self._choose(self._forward(start, stop, keep=False), candidates[0, start:], share)
        predicted, written = (torch.full_like(tokens, -1) for _ in range(2))
        predicted[0, start:] = token
        written[0, start:] = torch.where(chosen, token, -1)
        confidence = torch.full(tokens.shape, torch.nan, device=tokens.device, dtype=torch.float32)
        confidence[0, start:] = torch.where(chosen | candidates[0, start:], probability.float(), torch.nan)
        predicted = torch.where(candidates | (written >= 0), predicted, -1)
        after = torch.where(written >= 0, written, tokens)
        self.canvas[:, :stop] = after
        self.publisher.after(written, predicted, confidence)
        return after, written, confidence, stop - start

    def _choose(self, hidden: Tensor, masked: Tensor, share: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return each position's token and its probability, and which positions are committed, each [position]."""
        logits = self.model.network.lm_head(hidden)[0].to(masked.device)
        token, probability = _draw(check_finite(logits), self.settings, self.source)
        chosen = _places(probability, masked, share, self.settings)
        return token, probability, chosen & masked if self.settings.temperature == 0 else chosen


def _draw(logits: Tensor, settings: BlockDiffusionSettings, source: torch.Generator) -> tuple[Tensor, Tensor]:
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
    """Return which positions of a block are committed, bool [position].

    Args:
        probability: of the token that each position would take.
        masked: bool [position].
        share: how many tokens a step of this number commits.
    """
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
