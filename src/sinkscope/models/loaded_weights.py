"""Whether the weights of a network are still those that were loaded."""

import weakref

import torch
from torch import Tensor, nn

SAMPLE = 256
"""Numbers of each tensor that are compared, evenly spaced, so that it takes no time."""

_loaded: "weakref.WeakKeyDictionary[nn.Module, list[Tensor]]" = weakref.WeakKeyDictionary()


def note_loaded(network: nn.Module) -> None:
    """Note the weights of a network that has just been loaded."""
    _loaded[network] = _sample(network)


def were_changed(network: nn.Module) -> bool:
    """Return whether weights of a loaded network were replaced or written into; a change of the float type is none."""
    if network not in _loaded:
        return False
    before, now = _loaded[network], _sample(network)
    return len(before) != len(now) or not all(torch.equal(one.to(two.dtype), two) for one, two in zip(before, now, strict=True))


@torch.no_grad()
def _sample(network: nn.Module) -> list[Tensor]:
    weights = [one.detach() for one in network.parameters() if not one.is_meta]
    return [one.flatten()[:: max(1, one.numel() // SAMPLE)].clone().cpu() for one in weights]
