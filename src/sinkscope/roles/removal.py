"""Measures how predictions change when keys are hidden in one head. Many heads share a forward call, one to a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Hidden, Hider, LayerCall, subscribed
from sinkscope.models import Model
from sinkscope.roles.probes import Probe, predictions


@dataclass(frozen=True)
class Removal:
    """Keys taken from one head.

    Attributes:
        name: of the rule, such as ``sink`` or ``rowmass``.
        keys: bool [key].
        zeroed: their attention is lost with what they add (0 behind the softmax), instead of going to the other keys.
    """

    name: str
    layer: int
    head: int
    keys: Bool[np.ndarray, " key"]
    zeroed: bool = False


class _Remover(Hider):
    """Hides the keys of ``removals[r]`` in row r."""

    def __init__(self, removals: Sequence[Removal]) -> None:
        self.removals = removals

    def hide(self, call: LayerCall) -> list[Hidden] | None:
        mine = [(row, one) for row, one in enumerate(self.removals) if one.layer == call.index]
        found = []
        for zeroed in (False, True):
            keys = torch.zeros(len(self.removals), call.query.shape[1], call.keys, dtype=torch.bool)
            for row, one in mine:
                if one.zeroed == zeroed:
                    keys[row, one.head] = torch.from_numpy(one.keys)
            if keys.any():
                found.append(Hidden(keys[:, :, None].to(call.key.device), zeroed=zeroed))
        return found or None


@torch.no_grad()
def divergences(
    model: Model, probe: Probe, said: Float[Tensor, "reader vocabulary"], removals: Sequence[Removal], rows: int = 32
) -> tuple[Float[np.ndarray, " removal"], Float[np.ndarray, " removal"]]:
    """Return for each removal the mean KL divergence of the predictions, in nats, and the share whose first choice stays.

    Args:
        said: the log-probabilities without any removal.
        rows: canvases in one forward call.
    """
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers = torch.from_numpy(probe.readers)
    best, kl, kept = said.argmax(-1), [torch.zeros(0)], [torch.zeros(0)]
    for start in range(0, len(removals), rows):
        part = removals[start : start + rows]
        with subscribed(model.network, _Remover(part)):
            changed = predictions(model, tokens.expand(len(part), -1), readers)
        kl.append((said.exp() * (said - changed)).sum(-1).mean(-1).cpu())
        kept.append((changed.argmax(-1) == best).float().mean(-1).cpu())
    return torch.cat(kl).clamp(min=0).numpy().astype(np.float64), torch.cat(kept).numpy().astype(np.float64)
