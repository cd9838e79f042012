"""Hides keys in single heads and measures how predictions change; many removals share a forward call, one to a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.attention import Hidden, Hider, LayerCall, subscribed
from sinkscope.models import Model
from sinkscope.models.devices import is_out_of_memory
from sinkscope.roles.probes import Probe, as_written, predictions
from sinkscope.roles.sight import Sight

REMOVALS = 5
"""Removals of `removals_of` beside those of several keys."""

MOST_HIDDEN = (2, 3, 4, 6, 8)
"""How many of a head's largest columns are hidden together, besides one."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Keys taken from one head by a rule such as ``sink``; ``zeroed``: their attention is lost with what they add (0
    behind the softmax), instead of going to the other keys.
    """

    name: str
    layer: int
    head: int
    keys: Bool[np.ndarray, " key"]
    zeroed: bool = False


def removals_of(sight: Sight, sinks: Bool[np.ndarray, " key"], layer: int, head: int, seed: int) -> list[Removal]:
    """Return what is taken from one head on one canvas.

    ``sink``: the key with the largest column. ``sink.zero``: what it adds, its attention lost. ``rowmass``: keys drawn
    at random that are no sinks, until they hold as much of the readers' attention, or all of them where they hold less;
    another sink would be no control, as it may be a substitute. ``rowmass.zero`` likewise. ``random``: one key drawn at
    random. ``top.K``: the K largest columns.

    Args:
        sinks: of this head by Eq. 3.
    """
    keys = sight.columns.shape[-1]
    order = sight.order[layer, head]
    top = order[0]
    rng = np.random.default_rng([seed, layer, head, keys])
    others = rng.permutation(np.delete(np.arange(keys), top))
    held = sight.reader_rows[layer, head]
    plain = others[~sinks[others]]
    before = np.cumsum(held[plain]) - held[plain] / 2
    matched = plain[before < held[top]]
    matched = matched[: keys - 2]  # so that the head keeps a second key

    def of(*positions: Any) -> np.ndarray:
        chosen = np.zeros(keys, bool)
        chosen[list(positions)] = True
        return chosen

    found = [
        Removal("sink", layer, head, of(top)),
        Removal("sink.zero", layer, head, of(top), zeroed=True),
        Removal("rowmass", layer, head, of(*matched)),
        Removal("rowmass.zero", layer, head, of(*matched), zeroed=True),
        Removal("random", layer, head, of(others[0])),
    ]
    return found + [Removal(f"top.{many}", layer, head, of(*order[:many])) for many in MOST_HIDDEN if many < keys]


class _Remover(Hider):
    """Hides the keys of ``rows[r]`` in row r."""

    def __init__(self, rows: Sequence[Sequence[Removal]]) -> None:
        self.rows = rows

    def hide(self, call: LayerCall) -> list[Hidden] | None:
        mine = [(row, one) for row, removals in enumerate(self.rows) for one in removals if one.layer == call.index]
        found = []
        for zeroed in (False, True):
            keys = torch.zeros(len(self.rows), call.query.shape[1], call.keys, dtype=torch.bool)
            for row, one in mine:
                if one.zeroed == zeroed:
                    keys[row, one.head] = torch.from_numpy(one.keys)
            if keys.any():
                found.append(Hidden(keys[:, :, None].to(call.key.device), zeroed=zeroed))
        return found or None


@torch.no_grad()
def divergences(
    model: Model,
    probe: Probe,
    said: Float[Tensor, "reader vocabulary"],
    removals: Sequence[Removal | Sequence[Removal]],
    rows: int = 32,
) -> tuple[Float[np.ndarray, " removal"], Float[np.ndarray, " removal"]]:
    """Return for each removal the mean KL divergence of the predictions, in nats, and the share whose first choice
    stays.

    Args:
        said: the log-probabilities without any removal.
        removals: one or, from several heads together, a sequence of them.
        rows: canvases in one forward call, fewer where memory does not suffice.
    """
    tokens = torch.from_numpy(probe.tokens.astype(np.int64)).to(model.device)[None]
    readers = torch.from_numpy(probe.readers)
    wanted = [[one] if isinstance(one, Removal) else one for one in removals]
    best, kl, kept = said.argmax(-1), [torch.zeros(0, dtype=torch.float32)], [torch.zeros(0, dtype=torch.float32)]
    done = 0
    while done < len(wanted):
        part = wanted[done : done + rows]
        try:
            with as_written(model, probe), subscribed(model.network, _Remover(part)):
                changed = predictions(model, tokens.expand(len(part), -1), readers)
            found = (
                (said.exp() * (said - changed)).sum(-1).mean(-1).cpu(),
                (changed.argmax(-1) == best).float().mean(-1).cpu(),
            )
        except (RuntimeError, MemoryError) as error:
            if len(part) == 1 or not is_out_of_memory(error):
                raise
            rows = len(part) // 2
            continue
        kl.append(found[0])
        kept.append(found[1])
        done += len(part)
    return torch.cat(kl).clamp(min=0).numpy().astype(np.float64), torch.cat(kept).numpy().astype(np.float64)
