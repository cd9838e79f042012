"""dllm's samplers for masked diffusion (MDLM) and block diffusion (BD3LM) as generators of steps.

MDLM is LLaDA's loop with a schedule and a shift to choose. BD3LM writes block after block behind a cache of the
prompt and the finished blocks; a token sees its own block and those before it, and blocks are counted from the end of
the prompt, so that its first block may be a short one.

A step commits the expected number of tokens of the linear schedule, rounded half to even; steps that would commit none
are left out. Blocks and steps need not divide the length. Source: ZHZisZZ/dllm, dllm/core/samplers/mdlm.py and bd3lm.py.

The published BD3LM reads the prompt and all finished blocks again before each block; no token sees a later block, so
here each is read once. Quirk: tokens of a finished block that equal the tokenizer's padding are not seen by later ones.

Not modelled: the binomial schedule, ``cfg_keep_tokens``, suppressed tokens, and infilling.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention import mask_for
from sinkscope.decoding.blocks import BlockRule, block_steps
from sinkscope.decoding.canvas import Batch, Step, publishing
from sinkscope.decoding.projection import check_finite, with_unconditional
from sinkscope.decoding.sdar import BlockWriter, block_diffusion_steps
from sinkscope.decoding.settings import A2DSettings
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.models.families.a2d_family import ENCODER


def scheduled_quotas(masks: int, steps: int) -> list[int]:
    """Return how many tokens each step of a block commits by the linear schedule, in float32 as published."""
    found, left = [], masks
    for after in range(steps - 1, -1, -1):
        now, later = np.float32((after + 1) / steps), np.float32(after / steps)
        kept = (np.float32(1) - (np.float32(1) - later)) / (np.float32(1) - (np.float32(1) - now))
        found.append(min(left, int(np.rint(left * (1 - float(kept))))))
        left -= found[-1]
    return [count for count in found if count]


def a2d_steps(model: Model, batch: Batch, settings: A2DSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    shifted = replace(model, family=replace(model.family, shift=settings.right_shift_logits))
    if settings.algorithm == "bd3lm":
        if model.family.name == ENCODER.name:
            raise CallError(f"algorithm: expected mdlm for {model.card.name}, an encoder without a cache, found bd3lm")
        return block_diffusion_steps(shifted, batch, settings, BD3LMWriter)
    return block_steps(shifted, batch, settings, BlockRule(quotas=scheduled_quotas))


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

    @torch.no_grad()
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
        hidden = self.model.network.model(
            input_ids=inputs[:, start:],
            attention_mask=mask_for(self.model.network, seen.expand(len(inputs), 1, -1, -1)),
            position_ids=(real.long().cumsum(-1) - 1).clamp(min=0)[start:].expand(len(inputs), -1),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        if reads:
            self.last = hidden[:, -1:]
        return hidden

    def _choose(self, hidden: Tensor, masked: Tensor, share: Any) -> tuple[Tensor, Tensor, Tensor]:
        if self.settings.right_shift_logits:
            hidden = torch.cat([self.last, hidden[:, :-1]], dim=1)
        logits = self.model.network.lm_head(hidden).to(masked.device)
        if self.settings.guidance:
            logits = logits[1:] + (self.settings.guidance + 1) * (logits[:1] - logits[1:])
        logits, noisy = check_finite(logits[0]), None
        if self.settings.temperature > 0:
            noise = torch.rand(logits.shape, dtype=torch.float64, device=logits.device, generator=self.source)
            noisy = logits.double().exp() / (-noise.log()) ** self.settings.temperature
        token = (logits if noisy is None else noisy).argmax(-1)
        if self.settings.remasking == "random":
            probability = torch.rand(len(token), device=logits.device, generator=self.source)
        else:
            probability = torch.softmax(logits, dim=-1).gather(-1, token[:, None])[:, 0]
        chosen = torch.zeros_like(masked)
        confidence = torch.where(masked, probability, -torch.inf)
        chosen[confidence.topk(min(share, int(masked.sum()))).indices] = True
        return token, probability, chosen
