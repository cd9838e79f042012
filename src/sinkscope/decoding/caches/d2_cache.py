"""d2Cache (Jiang et al., 2025; Kamichanw/d2Cache, src/cache/d2cache.py, with its sampler src/generation/vanilla.py).

A step computes some masks, those that it may commit in sure surroundings; what the step before has committed; and the
positions that receive most attention through all layers (*rollout*). The first step of a generation computes all.

A mask's score is its confidence times the *density* of tokens around it, a mean of "is written" with Gaussian weights.
The best masks are taken from the block on, up to a place behind which enough of them have been found; those of the
block come first.

Quirk: confidences are those of the first step of the generation; the code that would renew them has no effect.
Quirk: beyond the right end of the answer its last token goes on, mask or not; to the left everything counts as written.
Quirk: that place is a multiple of the number of masks that the block still had, where one of its length was meant.
Quirk: which masks are computed at the start of a block was decided while the block before it was being written.
Quirk: a mask that is not computed may still be committed there, as token 0, once no other is left; here it waits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from sinkscope.attention import LayerCall, without_autocast
from sinkscope.decoding.caches.policy import CachePolicy, Count, Moment, Plan, Share, attention_weights
from sinkscope.models.family import Family


@dataclass(frozen=True)
class D2Cache(CachePolicy):
    """Computes the surest masks, what the step before has committed, and the most attended positions.

    Attributes:
        rollout: share of the passed-on attention that the most attended positions receive together, at least one
            (published: ``rollout_p``).
        masks: how many masks a step computes (published: ``current_k``).
        sigma: width of the Gaussian of the density, in tokens.
        inflate: a gap of fewer positions between two that are computed is computed too (published: ``inflate_w``, 0 in
            its configuration).
    """

    name = "d2cache"
    lasting = True
    surveys = True
    own_places = True
    rightward = True
    rollout: Share = 0.1
    masks: Count = 32
    sigma: Annotated[float, Field(ge=1e-3)] = 10.0
    inflate: Annotated[int, Field(ge=0)] = 0

    def plan(self, moment: Moment) -> Plan:
        assert moment.surveyed is not None and moment.now is not None
        fresh = torch.zeros_like(moment.masked)
        fresh[:, moment.width :] = self._surest(moment)
        fresh |= moment.commits[-1]
        # The most attended others, up to a share of all attention, at least one in each row.
        others = moment.real & ~fresh
        importance = (moment.now * moment.real[:, :, None]).sum(1).masked_fill(~others, 0)
        ordered, order = (importance / (importance.sum(-1, keepdim=True) + 1e-9)).sort(dim=-1, descending=True)
        chosen = ordered.cumsum(-1) <= self.rollout
        chosen[:, 0] = True
        fresh |= torch.zeros_like(others).scatter(1, order, chosen) & others
        # The gaps between two of them, where they are at most ``inflate`` apart.
        place = torch.arange(fresh.shape[1], device=fresh.device).expand_as(fresh)
        after = torch.where(fresh, place, fresh.shape[1]).flip(-1).cummin(-1).values.flip(-1)
        before = torch.where(fresh, place, -1).cummax(-1).values
        return Plan(fresh | ((after - before <= self.inflate) & (before >= 0) & (after < fresh.shape[1])))

    def _surest(self, moment: Moment) -> Tensor:
        """Return which masks of the answer are computed, bool [batch, position of the answer]."""
        assert moment.surveyed is not None
        answer = slice(moment.width, None)
        masked = moment.masked[:, answer]
        place = torch.arange(masked.shape[1], device=masked.device)
        block = (place >= moment.start - moment.width) & (place < moment.stop - moment.width)
        block = block & (masked | moment.commits[-1][:, answer])  # the masks that the step before began with
        size, start = block.sum(1).clamp(min=1), block.int().argmax(1)
        enough = masked.cumsum(1) >= self.masks
        last = torch.where(enough.any(1), enough.int().argmax(1), len(place) - 1)
        end = (last // size + 1) * size
        scores = moment.surveyed[:, answer] * density(~masked, self.sigma)
        scores = scores + block * scores.amax(1, keepdim=True)
        wanted = scores.masked_fill(~masked | (place < start[:, None]) | (place >= end[:, None]), -torch.inf)
        best = wanted.topk(min(self.masks, len(place)), dim=1).indices
        return torch.zeros_like(masked).scatter(1, best, True) & masked

    def watches(self, refresh: bool) -> bool:
        return True

    def follow(self, so_far: Tensor | None, call: LayerCall, moment: Moment) -> Tensor:
        """Return the attention rollout, float32 [row, position, position]; a place not computed attends to itself."""
        weights = attention_weights(call, moment.real[:, None, None], slice(None)).mean(1)[..., -call.key.shape[2] :]
        rows, _, length = weights.shape
        itself = torch.eye(length, device=weights.device, dtype=torch.float32).expand(rows, -1, -1)
        place = torch.arange(length, device=weights.device).expand(rows, -1) if call.part is None else call.part.queries
        place = torch.where((place >= 0) & moment.real.gather(1, place.clamp(min=0)), place, length)
        given = torch.cat([itself, itself[:, :1]], dim=1).scatter(1, place[..., None].expand(-1, -1, length), weights)
        mixed = given[:, :length] + itself
        mixed = mixed / mixed.sum(-1, keepdim=True)
        if so_far is None:
            return mixed
        with without_autocast(mixed.device.type):
            return mixed @ so_far

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        yield from super().misfits(family, settings)
        each = -(-settings.length // settings.steps)
        if not (settings.threshold or settings.factor) and self.masks < each:
            yield f"expected at least {each} masks, which a step commits, found {self.masks}; raise it or --steps"


def density(written: Tensor, sigma: float) -> Tensor:
    """Return the share of written tokens around each place, float32 [batch, place]; ``written`` is bool."""
    rows, length = written.shape
    before = written.new_ones(rows, length)
    line = torch.cat([before, written, written[:, -1:].expand(-1, length)], dim=1).double()
    place = torch.arange(3 * length, device=written.device)
    weights = torch.exp(-((place[length : 2 * length, None] - place[None]) ** 2) / (2 * sigma**2)).double()
    distances = torch.arange(-3 * length, 3 * length, device=written.device).double()
    return (line @ weights.T / torch.exp(-(distances**2) / (2 * sigma**2)).sum()).float()
