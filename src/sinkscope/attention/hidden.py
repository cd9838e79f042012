"""Keys taken away from queries: what a hider says, and what that does to the weights of a block of queries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_KEPT = 1e-6  # below this share, weights that are left over no longer carry enough digits to be scaled up


@dataclass(frozen=True)
class Hidden:
    """Keys taken away in one layer.

    Attributes:
        keys: bool [1 or batch, 1 or head, 1 or query, key], True where a key is taken away.
        queries: bool [1 or batch, query], which queries lose them; all of them when None.
        zeroed: their weights become 0 after the softmax and the others stay as they are (the output loses their
            share); otherwise they are −∞ before the softmax, which shares it out among the others.
        front: the constant keys in front of them (`Prefix`) are taken away too.
    """

    keys: Tensor
    queries: Tensor | None = None
    zeroed: bool = False
    front: bool = False


class Taken:
    """Everything that is hidden in one call of `attend`.

    A query that would lose its last visible key keeps all of them.
    """

    def __init__(self, hidden: Tensor | Sequence[Hidden], front: int, device: torch.device) -> None:
        given = [Hidden(hidden[:, :, None])] if isinstance(hidden, Tensor) else hidden
        self._masked = [one for one in given if not one.zeroed]
        self._zeroed = [one for one in given if one.zeroed]
        self._front = front
        self._kept: Tensor | None = None
        if all(one.queries is None and one.keys.shape[2] == 1 and not one.front for one in given):
            whole = slice(None)
            masked, zeroed = self._union(self._masked, whole, whole), self._union(self._zeroed, whole, whole)
            gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
            assert gone is not None
            gone = gone.to(device)
            self._kept = (~gone).float()
            self._unmasked = None if masked is None or zeroed is None else (~masked.to(device)).float()

    def values(self, value: Tensor, heads: slice) -> Tensor | None:
        """Values [batch, head, key, dim] with those of hidden keys 0; None where queries lose different keys."""
        if self._kept is None:
            return None
        kept = _heads(self._kept, heads)[..., self._front :].mT.to(value.dtype)
        count = kept.shape[1]
        return value * kept if count in (1, value.shape[1]) else value.repeat_interleave(count // value.shape[1], dim=1) * kept

    def quickly(self, weights: Tensor, unseeing: Tensor | None, heads: slice) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the weights of a block become where all queries lose the same keys: themselves, without the keys, scaled up.

        Softmax without a key is the softmax with it over what is left: no second one is needed.

        Returns:
            1 for kept keys [1 or batch, 1 or head, 1, key], a factor per query [batch, head, query, 1], and the share
            taken away [batch, head, query]; None where a query keeps too little for that to be exact, and on a GPU.
        """
        if self._kept is None or weights.is_cuda:  # which would be waited for, to know what a query keeps
            return None
        kept = _heads(self._kept, heads)
        left = weights @ kept.mT
        blind = 0.0 if unseeing is None else unseeing.to(left)
        if bool((left + blind < LEAST_KEPT).any()):
            return None
        unmasked = left if self._unmasked is None else weights @ _heads(self._unmasked, heads).mT
        factor = 1 / (unmasked + blind) if self._masked else torch.ones_like(left)
        return kept, factor, (1 - blind - left).clamp(min=0)[..., 0].detach()

    def exactly(
        self, scored: Callable[[], Tensor], weights: Tensor, unseeing: Tensor | None, heads: slice, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """What the weights of a block become where queries lose different keys, and the attention each query loses.

        By a softmax of their own where a query keeps too little, or where some keys are masked and others zeroed.

        Args:
            scored: gives the scores [batch, head, query, key], the prefix in front, in the place where ``weights`` may lie.
            weights: softmax of them, 0 for queries that see nothing (``unseeing``); they may be written over.

        Returns:
            weights in force [batch, head, query, key], and the share taken away [batch, head, query].
        """
        masked, zeroed = self._union(self._masked, heads, rows), self._union(self._zeroed, heads, rows)
        gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
        assert gone is not None
        if (masked is None or zeroed is None) and not weights.is_cuda:
            stays = (~gone).float()  # times that is three times as fast as filling in 0, where one mask serves all heads
            kept = weights * stays if weights.requires_grad else weights.mul_(stays)
            blind = weights.new_zeros(()) if unseeing is None else unseeing.to(weights)
            left = torch.where(gone.any(-1, keepdim=True), kept.sum(-1, keepdim=True), 1 - blind)  # who loses nothing stays to the bit
            if not bool((left + blind < LEAST_KEPT).any()):  # as in `quickly`: what is left, scaled up
                lost = (1 - blind - left).clamp(min=0)[..., 0].detach()
                factor = 1 / (left + blind)
                return (kept if masked is None else kept * factor if kept.requires_grad else kept.mul_(factor)), lost
        scores = scored()
        weights = torch.softmax(scores, dim=-1)
        if unseeing is not None:
            weights = weights.masked_fill(unseeing, 0.0)
        spared = torch.isneginf(scores.masked_fill(gone, -torch.inf).amax(dim=-1, keepdim=True))
        gone = gone & ~spared
        in_force = weights
        if masked is not None:
            in_force = torch.softmax(scores.masked_fill(masked & ~spared, -torch.inf), dim=-1)
            if unseeing is not None:
                in_force = in_force.masked_fill(unseeing, 0.0)
        if zeroed is not None:
            in_force = in_force.masked_fill(zeroed & ~spared, 0.0)
        return in_force, (weights * gone).sum(-1).detach()

    def _union(self, hidden: Sequence[Hidden], heads: slice, rows: slice) -> Tensor | None:
        """Bool [batch, head, query, key] of a block, the prefix in front included."""
        union: Tensor | None = None
        for one in hidden:
            keys = _heads(one.keys, heads)
            keys = keys if keys.shape[2] == 1 else keys[:, :, rows]
            keys = torch.nn.functional.pad(keys, (self._front, 0), value=one.front) if self._front else keys
            if one.queries is not None:
                keys = keys & one.queries[:, None, rows, None]
            union = keys if union is None else union | keys
        return union


def _heads(tensor: Tensor, heads: slice) -> Tensor:
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]
