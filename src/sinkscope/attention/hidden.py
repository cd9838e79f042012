"""Keys taken away from queries: what a hider says, and what that does to the weights of a block of queries."""

from collections.abc import Sequence
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
    """

    keys: Tensor
    queries: Tensor | None = None
    zeroed: bool = False


class Taken:
    """Everything that is hidden in one call of `attend`.

    A query that would lose its last visible key keeps all of them.
    """

    def __init__(self, hidden: Tensor | Sequence[Hidden], front: int, device: torch.device) -> None:
        given = [Hidden(hidden[:, :, None])] if isinstance(hidden, Tensor) else hidden
        self._masked = [one for one in given if not one.zeroed]
        self._zeroed = [one for one in given if one.zeroed]
        self._front = front
        self._for_all: tuple[Tensor, Tensor, Tensor] | None = None
        if all(one.queries is None and one.keys.shape[2] == 1 for one in given):
            whole = slice(None)
            masked, zeroed = self._union(self._masked, whole, whole), self._union(self._zeroed, whole, whole)
            gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
            if gone is not None:
                unmasked = torch.ones_like(gone) if masked is None else ~masked
                self._for_all = tuple(one.to(device).float() for one in (~gone, gone, unmasked))  # type: ignore[assignment]

    def apply(self, scores: Tensor, weights: Tensor, unseeing: Tensor | None, heads: slice, rows: slice) -> tuple[Tensor, Tensor]:
        """What the weights of a block become, and the attention each query loses.

        Args:
            scores: [batch, head, query, key], the prefix in front.
            weights: softmax of them, 0 for queries that see nothing (``unseeing``).

        Returns:
            weights in force [batch, head, query, key], and the share taken away [batch, head, query].
        """
        if self._for_all is not None:
            # Softmax without a key is the softmax with it, scaled up: no second one is needed.
            kept, gone, unmasked = (_heads(one, heads) for one in self._for_all)
            lost = (weights @ gone.mT)[..., 0]
            left = weights @ kept.mT
            divisor = left if not self._zeroed else weights @ unmasked.mT if self._masked else None
            blind = torch.zeros_like(left, dtype=torch.bool) if unseeing is None else unseeing
            if not bool(((left < LEAST_KEPT) & ~blind).any()):
                in_force = weights * kept
                if divisor is not None:
                    divisor = divisor.masked_fill(blind, 1.0)
                    in_force = in_force / divisor if in_force.requires_grad else in_force.div_(divisor)
                return in_force, lost.detach()
        masked, zeroed = self._union(self._masked, heads, rows), self._union(self._zeroed, heads, rows)
        gone = zeroed if masked is None else masked if zeroed is None else masked | zeroed
        assert gone is not None
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
        """Bool [batch, head, query, key] of a block, the prefix in front kept."""
        union: Tensor | None = None
        for one in hidden:
            keys = _heads(one.keys, heads)
            keys = keys if keys.shape[2] == 1 else keys[:, :, rows]
            if one.queries is not None:
                keys = keys & one.queries[:, None, rows, None]
            union = keys if union is None else union | keys
        return union if union is None or not self._front else torch.nn.functional.pad(union, (self._front, 0))


def _heads(tensor: Tensor, heads: slice) -> Tensor:
    return tensor if tensor.shape[1] == 1 else tensor[:, heads]
