"""Whether the weights of a network are still those that were loaded."""

import torch
from torch import Tensor, nn

SAMPLE = 256
"""Numbers of each tensor that are compared, evenly spaced, so that it takes no time."""
_LOADED = "_sinkscope_loaded_weights"
"""Attribute of a loaded network with these numbers, so that copies of it have them too."""


def note_loaded(network: nn.Module) -> None:
    """Note the weights of a network that has just been loaded."""
    setattr(network, _LOADED, _sample(network))


def were_changed(network: nn.Module) -> bool:
    """Return whether weights of a loaded network, a copy of one or an adapter around one were replaced, added or written into.

    A change of the float type is none.
    """
    before = next((noted for module in network.modules() if (noted := getattr(module, _LOADED, None)) is not None), None)
    if before is None:
        return False
    now = _sample(network)
    return len(before) != len(now) or not all(torch.equal(one.to(two.dtype), two) for one, two in zip(before, now, strict=True))


@torch.no_grad()
def _sample(network: nn.Module) -> list[Tensor]:
    weights = [one.detach() for one in network.parameters() if not one.is_meta]
    return [one.flatten()[:: max(1, one.numel() // SAMPLE)].clone().cpu() for one in weights]
