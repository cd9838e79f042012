"""Fast-dLLM v2's sampler as a generator of steps: SDAR's blocks behind a cache, each written in small blocks.

A step is one forward call. Most denoise the running block, in which one small block after the other is finished; the
others read the prompt's whole blocks, and each finished block, whose last logits are the first token of the next one.
So a trace ends with one token beyond the last block. Source: Efficient-Large-Model/Fast_dLLM_v2_7B, modeling.py.

Quirk: writing stops as soon as no mask is left in front of an end token; masks behind it stay, and its block is not
read. The published function then cuts the text behind that token.

Not as published: a prompt of exactly one block is read, where the published function forgets it. Not modelled: the
cache within a block (``use_block_cache``).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Batch, Step, publishing
from sinkscope.decoding.projection import check_finite
from sinkscope.decoding.sdar import BlockWriter, block_diffusion_steps, draw
from sinkscope.decoding.settings import FastDLLMv2Settings
from sinkscope.errors import ModelError
from sinkscope.models import Model


def fast_dllm_v2_steps(model: Model, batch: Batch, settings: FastDLLMv2Settings) -> Iterator[Step]:
    """Write ``settings.length`` tokens in blocks behind each prompt; one `Step` a forward call."""
    return block_diffusion_steps(model, batch, settings, FastDLLMv2Writer)


class FastDLLMv2Writer(BlockWriter):
    """Writes one prompt; ``share`` is where in its block the small block begins."""

    @staticmethod
    def end(prompt: int, settings: Any) -> int:
        return (prompt // settings.block - (-settings.length // settings.block)) * settings.block + 1

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        block, small = self.settings.block, self.settings.small_block
        first = self.prompt // block * block
        with (
            self.model.network.model.blocks_of(block),
            publishing(self.model, self.batch, self.settings) as self.publisher,
        ):
            if first:
                yield self.call(0, first)
            for start in range(first, self.final - 1, block):
                for share in range(0, block, small):
                    inner = self.canvas[:, start + share : start + share + small]  # a view
                    while not self._ended() and (left := int((inner == self.mask_id).sum())):
                        yield self.call(start, start + block, share)
                        if self.settings.temperature == 0 and left == int((inner == self.mask_id).sum()):
                            name = self.model.card.name
                            raise ModelError(f"{name}: expected a token in place of a mask, found the mask token")
                if self._ended():
                    return
                yield self.call(start, start + block)

    def _ended(self) -> bool:
        """Return whether the answer has an end token without masks in front of it."""
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
