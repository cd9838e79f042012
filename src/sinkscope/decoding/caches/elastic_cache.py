"""Elastic-Cache (Nguyen-Tri et al., 2025; yxu-dev/Elastic-Cache, llada/generate.py, llada/model/modeling_llada.py).

There are no blocks: a window, the first masks of the answer, moves to the right. A step computes the window, what the
step before has committed, and the *tracked* tokens, which the window attended to most in some layer. Where the
attention of the tracked tokens has turned in a layer by more than ``gamma`` allows, the layers behind it compute all
positions; those in front keep the stored ones.

Quirk: attention has turned where the cosines over the heads, one for each tracked token and key, have a mean below
``gamma``.
Quirk: the first layer behind begins with the hidden states that entered it last, most of them in an earlier step.
Quirk: the published loop leaves the masks behind the first EOS unwritten; here all are written.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, Moment, Plan
from sinkscope.models.family import Family


@dataclass(frozen=True)
class ElasticCache(CachePolicy):
    """Computes a window of masks and the most attended tokens; behind a layer where their attention has turned,
    everything.

    Attributes:
        window: how many masks a step computes, and may commit (published: ``window_length``).
        gamma: least cosine between the attention of the tracked tokens before and now (published: ``gamma``).
        tracked: how many tokens are tracked for each layer (published: ``track_num``).
    """

    name = "elastic-cache"
    double = True
    own_places = True

    window: int = 16
    gamma: float = 0.9
    tracked: int = 1

    ranges = {"window": (1, inf), "gamma": (0, 1), "tracked": (1, inf)}  # noqa: RUF012

    def first(self, moment: Moment) -> Plan:
        return self.plan(moment)

    def plan(self, moment: Moment) -> Plan:
        return Plan(open=self.window_of(moment.masked))

    def window_of(self, masked: Tensor) -> Tensor:
        """Return the first masks of each row, bool [row, position]."""
        return masked & (masked.cumsum(-1) <= self.window)

    def has_turned(self, before: Tensor, now: Tensor, real: Tensor) -> bool:
        """Return whether the attention of the tracked tokens, [1, head, token, key], has turned."""
        alike = torch.nn.functional.cosine_similarity(before, now, dim=1)
        return bool(alike[:, :, real[0]].mean() < self.gamma)

    def most_attended(self, weights: Tensor, among: Tensor) -> Tensor:
        """Return the tracked tokens among some, bool [row, position], by the weights of the window's queries."""
        received = weights.sum((1, 2)).masked_fill(~among, 0)
        best = received.topk(min(self.tracked, received.shape[1]), dim=-1).indices
        return torch.zeros_like(among).scatter(1, best, True) & among

    def misfits(self, family: Family, settings: Any) -> Iterator[str]:
        yield from super().misfits(family, settings)
        if settings.block != settings.length:
            yield f"expected one block, found blocks of {settings.block}; use --block {settings.length}"
        each = -(-settings.length // settings.steps)
        if not (settings.threshold or settings.factor) and self.window < each:
            yield f"expected a window of at least {each}, which a step commits, found {self.window}; raise --steps"
