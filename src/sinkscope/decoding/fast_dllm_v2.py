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
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.projection import check_finite
from sinkscope.decoding.sdar import BlockWriter, block_diffusion_steps
from sinkscope.decoding.settings import Settings
from sinkscope.errors import ModelError
from sinkscope.models import Model


@dataclass(frozen=True)
class FastDLLMv2Settings(Settings):
    """Fast-dLLM v2's block diffusion (Efficient-Large-Model/Fast_dLLM_v2_7B, ``generate`` of modeling.py).

    Attributes:
        length: tokens to write (published: ``max_new_tokens``), in whole blocks from the prompt's last one on, the last
            of which is written to its end; the published code leaves it out.
        block: tokens of a block (published: ``block_size``); the model was trained with 32.
        small_block: tokens of a small block (published: ``small_block_size``).
        threshold: masks of a small block above this probability are committed, and always the most probable one; the
            published example takes 0.9.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; not used at temperature 0.
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 128
    block: int = 32
    small_block: int = 8
    threshold: float = 1.0
    temperature: float = 0.0
    top_p: float = 0.95
    seed: int = 0

    follows_length: ClassVar = ()

    def misfits(self) -> Iterator[str]:
        if self.small_block < 1 or self.block % self.small_block:
            yield f"small_block: expected a divisor of {self.block}, found {self.small_block}"

    @property
    def most_calls(self) -> int:
        """One for the whole blocks of the prompt; for each block one a token, and the call that reads it."""
        return 1 + -(-self.length // self.block) * (self.block + 1)


def fast_dllm_v2_steps(model: Model, batch: Batch, settings: FastDLLMv2Settings) -> Iterator[Step]:
    """Write ``settings.length`` tokens in blocks behind each prompt; one `Step` a forward call."""
    return block_diffusion_steps(model, batch, settings, FastDLLMv2Writer)


class FastDLLMv2Writer(BlockWriter):
    """Writes one prompt."""

    @staticmethod
    def end(prompt: int, settings: Any) -> int:
        return (prompt // settings.block - (-settings.length // settings.block)) * settings.block + 1

    def _steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        block, small = self.settings.block, self.settings.small_block
        first = self.prompt // block * block
        if first:
            yield self._read(0, first)
        for start in range(first, self.final - 1, block):
            for inner in range(start, start + block, small):
                places = slice(inner, inner + small)
                while not self._ended() and bool((self.canvas[:, places] == self.mask_id).any()):
                    before = self.canvas.clone()
                    yield self._denoise(start, start + block, inner - start, places)
                    if self.settings.temperature == 0 and torch.equal(before, self.canvas):
                        raise ModelError(
                            f"{self.model.card.name}: expected a token in place of a mask, found the mask token"
                        )
            if self._ended():
                return
            yield self._read(start, start + block)

    def _ended(self) -> bool:
        """Return whether the answer has an end token without masks in front of it."""
        answer = self.canvas[0, self.prompt :]
        ends = torch.isin(answer, self.ends).nonzero()
        return len(ends) > 0 and not bool((answer[: int(ends[0])] == self.mask_id).any())

    def _read(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Read finished blocks, and commit the token behind them, unless the prompt goes on there."""
        if stop < self.prompt:
            return super()._read(start, stop)
        tokens, lengths = self.canvas[:, :stop].clone(), torch.tensor([stop], device="cpu")
        written = torch.full((1, stop + 1), -1, device=tokens.device)
        last = torch.arange(stop + 1, device=tokens.device)[None] == stop
        self.keys = stop
        self.publisher.before(tokens, tokens == self.mask_id, lengths, [0], candidates=last, final_queries=True)
        hidden = self._forward(start, stop, keep=True)[:, -self.settings.block :]
        sure, token = torch.softmax(check_finite(self.model.network.lm_head(hidden)[0, -1].to(tokens.device)), -1).max(
            -1
        )
        written[0, stop] = self.canvas[0, stop] = token
        confidence = torch.where(last, sure.float(), torch.nan)
        self.publisher.after(written, written, confidence)
        return self.canvas[:, : stop + 1].clone(), written, confidence, stop - start

    def _choose(self, hidden: Tensor, masked: Tensor, share: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, probabilities and commits of a block, in which a small block begins at ``share``."""
        here = slice(share, share + self.settings.small_block)
        logits = check_finite(self.model.network.lm_head(hidden)[0].to(masked.device))
        logits = torch.cat([logits[:1], logits[:-1]])[here]
        token, chosen = torch.zeros_like(masked, dtype=torch.long), torch.zeros_like(masked)
        probability = torch.full(masked.shape, torch.nan, device=masked.device)
        if self.settings.temperature == 0:
            shares = torch.softmax(logits, dim=-1)
            token[here] = shares.argmax(-1)
        else:
            shares = torch.softmax(logits / self.settings.temperature, dim=-1)
            ordered, order = shares.sort(descending=True)
            beyond = (ordered.cumsum(-1) > self.settings.top_p).roll(1, dims=-1)
            beyond[:, 0] = False
            shares = shares.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), 0)
            shares = shares / shares.sum(-1, keepdim=True)
            token[here] = torch.multinomial(shares, 1, generator=self.source)[:, 0]
        probability[here] = shares.gather(-1, token[here, None])[:, 0].float()
        sure = torch.where(masked[here], probability[here], -torch.inf)
        chosen[here] = sure > self.settings.threshold
        chosen[share + int(sure.argmax())] = True
        return token, probability, chosen
