"""Block diffusion: block after block, each by diffusion behind a cache of the finished ones: SDAR, LLaDA 2, Fast-dLLM
v2, and dllm's samplers for adapted models, of which MDLM is LLaDA's loop with a schedule and a shift to choose.

Most steps denoise the running block: it is the queries, everything up to its end the keys. The others only *read*, and
commit nothing: the whole blocks of the prompt before the first block, and each block once it is finished. Prompts are
written one by one, as published. LLaDA 2 and BD3LM have no such cache, but finished blocks come out the same.

Quirk: SDAR, above temperature 0: a step commits its whole share even where fewer masks are left, and then replaces
tokens that were written, the prompt's in the first block included. The published evaluation (temperature 0) does not.
Quirk: SDAR's confidences are over the whole vocabulary at temperature 0; above it, over what top_k and top_p leave.
Quirk: the last block ends where a block ends, up to block − 1 tokens beyond the length; BD3LM counts blocks from the
end of the prompt.
Quirk: Fast-dLLM v2 (Efficient-Large-Model/Fast_dLLM_v2_7B, modeling.py): writing stops as soon as no mask is left in
front of an end token; masks behind it stay, and its block is not read. A prompt of exactly one block is read, where the
published function forgets it. Not modelled: the cache within a block (``use_block_cache``).
Quirk: BD3LM (ZHZisZZ/dllm, dllm/core/samplers): tokens of a finished block that equal the tokenizer's padding are not
seen by later ones. Steps commit the expected number of tokens of the linear schedule, rounded half to even; those that
would commit none are left out. Not modelled: the binomial schedule, ``cfg_keep_tokens``, suppressed tokens, infilling.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.decoding.blocks import BlockRule, block_steps, prompt_by_prompt, quotas
from sinkscope.decoding.canvas import Batch, Step, WorkMeter, publishing
from sinkscope.decoding.projection import check_finite, stored_call, with_unconditional, within_top_k, within_top_p
from sinkscope.decoding.settings import A2DSettings, LLaDA2Settings
from sinkscope.errors import CallError, ModelError
from sinkscope.models import Model
from sinkscope.models.families.basic_family import ENCODER


def a2d_steps(model: Model, batch: Batch, settings: A2DSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    shifted = replace(model, family=replace(model.family, shift=settings.right_shift_logits))
    if settings.algorithm == "bd3lm":
        if model.family.name == ENCODER.name:
            raise CallError(f"algorithm: expected mdlm for {model.card.name}, an encoder without a cache, found bd3lm")
        return block_diffusion_steps(shifted, batch, settings, BD3LMWriter)
    return block_steps(shifted, batch, settings, BlockRule(quotas=scheduled_quotas))


@torch.no_grad()
def block_diffusion_steps(model: Model, batch: Batch, settings: Any, writer: type["BlockWriter"]) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, up to the end of a block; one `Step` a forward call."""
    finals = [writer.end(own, settings) for own in batch.lengths]
    whole = f"the last block of {settings.block} ends at token {max(finals)}"
    model.expect_room(max(finals), whole, "; shorten the prompt or --length")
    ends = torch.tensor(finals, device="cpu")
    yield from prompt_by_prompt(model, batch, settings, lambda one, its: writer(model, one, its).steps(), ends)


class BlockWriter:
    """Writes a batch of one prompt behind a cache of the finished blocks."""

    def __init__(self, model: Model, batch: Batch, settings: Any) -> None:
        from transformers import DynamicCache

        self.model, self.batch, self.settings, self.mask_id = model, batch, settings, model.mask_id
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
        return -(-(prompt + settings.length) // settings.block) * settings.block

    def steps(self) -> Iterator[Step]:
        """Yield each call with the tokens so far."""
        block = self.settings.block
        first = self.prompt // block * block
        with (
            self.model.network.model.blocks_of(block),
            publishing(self.model, self.batch, self.settings) as self.publisher,
        ):
            if first:
                yield self.call(0, first)
            yield from self._write(first, block)

    def _write(self, first: int, block: int) -> Iterator[Step]:
        for start in range(first, self.final, block):
            for share in quotas(block, self.settings.block_steps):
                if not bool((self.canvas[:, start : start + block] == self.mask_id).any()):
                    break
                yield self.call(start, start + block, share)
            yield self.call(start, start + block)
            if self.settings.stop and bool(torch.isin(self.canvas[:, self.prompt : start + block], self.ends).any()):
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
        return self.canvas[:, :stop].clone()

    def _read(self, inputs: Tensor, start: int, reads: bool) -> Tensor:
        """Return the hidden states [copy, query, width] of the positions behind the cache."""
        positions = torch.arange(start, inputs.shape[1], device=inputs.device)[None]
        return stored_call(self.model, inputs[:, start:], positions, None, self.cache)

    def _choose(self, hidden: Tensor, masked: Tensor, share: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return each position's token and its probability, and which positions are committed, each [position]."""
        settings, logits = self.settings, self.model.network.lm_head(hidden)[0].to(masked.device)
        token, probability = draw(check_finite(logits), settings, self.source)
        confidence, chosen = torch.where(masked, probability, -torch.inf), torch.zeros_like(masked)
        sure = confidence > settings.threshold
        if settings.remasking == "sequential":
            first = int(masked.nonzero()[0])
            chosen[first : first + share] = True
        elif settings.remasking == "dynamic" and int(sure.sum()) >= share:
            chosen = sure
        else:
            share = share if settings.replaces else min(share, int(masked.sum()))
            chosen[torch.topk(confidence, share).indices] = True
        return token, probability, chosen & masked if settings.temperature == 0 else chosen


def draw(logits: Tensor, settings: Any, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return each position's token, int64 [position], and its probability; ``logits`` are [position, vocabulary]."""
    if settings.temperature == 0:
        token = logits.argmax(-1)
        return token, torch.softmax(logits, dim=-1).gather(-1, token[:, None])[:, 0]
    if settings.temperature != 1:
        logits = logits / settings.temperature
    logits = within_top_p(within_top_k(logits, settings.top_k), settings.top_p)
    probabilities = torch.softmax(logits, dim=-1)
    token = torch.multinomial(probabilities, 1, generator=source)
    return token[:, 0], probabilities.gather(-1, token)[:, 0]


class FastDLLMv2Writer(BlockWriter):
    """Writes one prompt; ``share`` is where in its block the small block begins."""

    @staticmethod
    def end(prompt: int, settings: Any) -> int:
        return (prompt // settings.block - (-settings.length // settings.block)) * settings.block + 1

    def _write(self, first: int, block: int) -> Iterator[Step]:
        small = self.settings.small_block
        for start in range(first, self.final - 1, block):
            for share in range(0, block, small):
                inner = self.canvas[:, start + share : start + share + small]  # a view
                while not self._ended() and (left := int((inner == self.mask_id).sum())):
                    yield self.call(start, start + block, share)
                    if self.settings.temperature == 0 and left == int((inner == self.mask_id).sum()):
                        raise ModelError("expected a token in place of a mask, found the mask token")
            if self._ended():
                return
            yield self.call(start, start + block)

    def _ended(self) -> bool:
        answer = self.canvas[0, self.prompt :]
        ends = torch.isin(answer, self.ends).nonzero()
        return len(ends) > 0 and not bool((answer[: int(ends[0])] == self.mask_id).any())

    def _candidates(self, start: int, stop: int, share: int | None) -> slice:
        if share is None:  # the token behind the block, unless the prompt goes on there
            return slice(stop, stop + (stop >= self.prompt))
        return slice(start + share, start + share + self.settings.small_block)

    def _choose(self, hidden: Tensor, masked: Tensor, share: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits = check_finite(self.model.network.lm_head(hidden[:, -self.settings.block :])[0].to(masked.device))
        here, settings = slice(-1, None), replace(self.settings, temperature=0.0)
        if share is not None:
            here, settings = slice(share, share + self.settings.small_block), self.settings
        token, chosen = torch.zeros_like(masked, dtype=torch.long), torch.zeros_like(masked)
        probability = torch.zeros_like(masked, dtype=logits.dtype)
        token[here], probability[here] = draw(torch.cat([logits[:1], logits])[here], settings, self.source)
        sure = torch.where(masked[here], probability[here], -torch.inf)
        chosen[here] = sure > settings.threshold
        chosen[here][sure.argmax()] = True
        return token, probability, chosen


def scheduled_quotas(masks: int, steps: int) -> list[int]:
    """Return how many tokens each step of a block commits by the linear schedule, in float32 as published."""
    found, left = [], masks
    for after in range(steps - 1, -1, -1):
        now, later = np.float32((after + 1) / steps), np.float32(after / steps)
        kept = (np.float32(1) - (np.float32(1) - later)) / (np.float32(1) - (np.float32(1) - now))
        found.append(min(left, int(np.rint(left * (1 - float(kept))))))
        left -= found[-1]
    return [count for count in found if count]


class BD3LMWriter(BlockWriter):
    """Writes one prompt; with guidance a canvas whose prompt is masked runs beside it."""

    def __init__(self, model: Model, batch: Batch, settings: A2DSettings) -> None:
        super().__init__(model, batch, settings)
        number = (torch.arange(self.final, device=self.canvas.device) + -self.prompt % settings.block) // settings.block
        self.seen = number[None] <= number[:, None]
        padding = model.tokenizer.pad_token_id
        self.padding = -1 if padding is None else padding

    @staticmethod
    def end(prompt: int, settings: A2DSettings) -> int:
        return prompt + settings.length

    def steps(self) -> Iterator[Step]:
        block, length = self.settings.block, self.settings.length
        steps = -(-self.settings.steps // -(-length // block))
        with publishing(self.model, self.batch, self.settings) as self.publisher:
            yield self.call(0, self.prompt)
            for start in range(self.prompt, self.final, block):
                stop = min(start + block, self.final)
                for share in scheduled_quotas(stop - start, steps):
                    yield self.call(start, stop, share)
                ended = bool((self.canvas[:, start:stop] == self.model.tokenizer.eos_token_id).any())
                if ended or stop == self.final:
                    return
                yield self.call(start, stop)

    def _inputs(self, stop: int) -> Tensor:
        prompt = (torch.arange(stop, device=self.canvas.device) < self.prompt)[None]
        return with_unconditional(self.canvas[:, :stop].clone(), prompt, self.mask_id, self.settings.guidance)

    def _read(self, inputs: Tensor, start: int, reads: bool) -> Tensor:
        stop = inputs.shape[1]
        real = self.canvas[0, :stop] != self.padding
        if not reads:
            real[start:] = True  # the running block sees all of itself
        here = torch.arange(start, stop, device=inputs.device)
        seen = self.seen[start:stop, :stop] & real
        seen[here - start, here] = True  # padding would see nothing
        positions = (real.long().cumsum(-1) - 1).clamp(min=0)[start:].expand(len(inputs), -1)
        seen = seen.expand(len(inputs), 1, -1, -1)
        hidden = stored_call(self.model, inputs[:, start:], positions, seen, self.cache)
        if reads:
            self.last = hidden[:, -1:]
        return hidden

    def _choose(self, hidden: Tensor, masked: Tensor, share: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.settings.right_shift_logits:
            hidden = torch.cat([self.last, hidden[:, :-1]], dim=1)
        logits = self.model.network.lm_head(hidden).to(masked.device)
        if self.settings.guidance:
            logits = logits[1:] + (self.settings.guidance + 1) * (logits[:1] - logits[1:])
        logits = check_finite(logits[0])
        token = logits.argmax(-1)
        if self.settings.temperature > 0:
            noise = torch.rand(logits.shape, dtype=torch.float64, device=logits.device, generator=self.source)
            token = (logits.double().exp() / (-noise.log()) ** self.settings.temperature).argmax(-1)
        if self.settings.remasking == "random":
            probability = torch.rand(len(token), device=logits.device, generator=self.source)
        else:
            probability = torch.softmax(logits, dim=-1).gather(-1, token[:, None])[:, 0]
        chosen = torch.zeros_like(masked)
        confidence = torch.where(masked, probability, -torch.inf)
        chosen[confidence.topk(min(share, int(masked.sum()))).indices] = True
        return token, probability, chosen


sdar_steps = partial(block_diffusion_steps, writer=BlockWriter)
fast_dllm_v2_steps = partial(block_diffusion_steps, writer=FastDLLMv2Writer)


def llada2_steps(model: Model, batch: Batch, settings: LLaDA2Settings) -> Iterator[Step]:
    """Write with at most as many steps a block (a quirk) as there are tokens to write."""
    steps = min(settings.block_steps, settings.length)
    return block_diffusion_steps(model, batch, replace(settings, block_steps=steps), BlockWriter)
