"""Autoregressive sampling as a generator of steps: one token a step, with a cache of keys and values, until EOS."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.decoding.canvas import Batch, Step, publishing, row_generators
from sinkscope.decoding.projection import check_finite
from sinkscope.decoding.settings import AutoregressiveSettings
from sinkscope.models import Model


@torch.no_grad()
def autoregressive_steps(model: Model, batch: Batch, settings: AutoregressiveSettings) -> Iterator[Step]:
    """Write up to ``settings.length`` tokens, one `Step` a forward call; a row that wrote EOS is not published."""
    tokens, real = batch.tokens, batch.real
    rows = len(tokens)
    eos, ends = model.card.eos_id, torch.tensor(model.card.ends, device=tokens.device, dtype=torch.long)
    cache = whole_cache(model.network)
    finished = torch.zeros(rows, dtype=torch.bool, device=tokens.device)
    sources = row_generators(settings.seed, rows, tokens.device)
    fresh, lengths = tokens, torch.tensor(batch.lengths, device="cpu")
    with publishing(model, batch, settings) as publisher:
        for number in range(settings.length):
            writing = (~finished).nonzero().squeeze(-1).tolist()
            nothing = torch.zeros_like(tokens, dtype=torch.bool)
            publisher.before(tokens, nothing, lengths + number, writing, candidates=pad(nothing, (0, 1), value=True))
            positions = (real.long().cumsum(-1) - 1).clamp(min=0)[:, -fresh.shape[1] :]
            mask = None if bool(real.all()) else real.long()
            stored = {"past_key_values": cache, "use_cache": True}
            found = model.logits(fresh, 1, attention_mask=mask, position_ids=positions, **stored)
            logits = check_finite(found[:, 0].to(tokens.device)).float()
            token, sure = _choose(logits, settings, sources)
            if eos is not None:
                token = torch.where(finished, eos, token)
            written = torch.full((rows, tokens.shape[1] + 1), -1, dtype=torch.long, device=tokens.device)
            written[:, -1] = torch.where(finished, -1, token)
            confidence = torch.full(written.shape, torch.nan, device=tokens.device, dtype=torch.float32)
            confidence[:, -1] = sure
            publisher.after(written, written, confidence)
            fresh = token[:, None]
            tokens = torch.cat([tokens, fresh], dim=1)
            real = torch.cat([real, torch.ones_like(fresh, dtype=torch.bool)], dim=1)
            yield Step(number, tokens, written, confidence)
            finished = finished | torch.isin(token, ends)
            if bool(finished.all()):
                return


def whole_cache(network: Any) -> Any:
    """Return an empty cache that keeps every key, also in layers that see only the newest ones."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=network.config)
    cache.layers = [DynamicLayer() if getattr(layer, "is_sliding", False) else layer for layer in cache.layers]
    return cache


def _choose(logits: Tensor, settings: AutoregressiveSettings, sources: list[torch.Generator]) -> tuple[Tensor, Tensor]:
    """Return the next token of each row, int64 [batch], and its probability, float32 [batch]."""
    if settings.temperature == 0:
        token = logits.argmax(-1)
        return token, torch.softmax(logits, -1).gather(-1, token[:, None]).squeeze(-1)
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = logits / settings.temperature
    if settings.top_k:
        logits = TopKLogitsWarper(settings.top_k)(None, logits)  # type: ignore[arg-type]
    if settings.top_p < 1:
        logits = TopPLogitsWarper(settings.top_p)(None, logits)  # type: ignore[arg-type]
    probabilities = torch.softmax(logits, dim=-1)
    drawn = [torch.multinomial(row, 1, generator=one)[0] for row, one in zip(probabilities, sources, strict=True)]
    token = torch.stack(drawn)
    return token, probabilities.gather(-1, token[:, None]).squeeze(-1)
