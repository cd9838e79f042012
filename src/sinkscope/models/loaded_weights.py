"""Whether the weights of a network are still those that were loaded."""

import torch
from torch import Tensor, nn

from sinkscope.errors import CallError

SAMPLE = 256
"""Numbers of each tensor that are compared, evenly spaced, so that it takes no time."""
_LOADED = "_sinkscope_loaded_weights"
"""Attribute of a loaded network with these numbers, so that copies of it have them too."""


def note_loaded(network: nn.Module, weight_hash: str) -> None:
    """Note the weights of a network that has just been loaded, and the hash of their files."""
    setattr(network, _LOADED, (weight_hash, _sample(network)))


def were_changed(network: nn.Module, weight_hash: str | None = None) -> bool:
    """Return whether weights of a loaded network, a copy of one or an adapter around one were replaced, added or written into.

    A change of the float type is none.

    Args:
        weight_hash: of the files that they should be of; the weights of other files count as changed.
    """
    noted = next((one for module in network.modules() if (one := getattr(module, _LOADED, None)) is not None), None)
    if noted is None:
        return False
    of_files, before = noted
    if weight_hash not in (None, of_files):
        return True
    now = _sample(network)
    return len(before) != len(now) or not all(
        torch.equal(one.to(two.dtype), two) for one, two in zip(before, now, strict=True)
    )


@torch.no_grad()
def _sample(network: nn.Module) -> list[Tensor]:
    weights = [one.detach() for one in network.parameters() if not one.is_meta]
    return [one.flatten()[:: max(1, one.numel() // SAMPLE)].clone().cpu() for one in weights]


class SameWeights:
    """Notes the weights of a network when it is first asked, and whether they are the same ones later."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._first: list[Tensor] | None = None

    def check(self, what: str) -> None:
        """Raise CallError where weights were changed, or cast, since the first call.

        Args:
            what: what asks for the same weights, such as ``keep='statistics' counts prompts of one network``.
        """
        now = _sample(self._network)
        if self._first is None:
            self._first = now
        elif len(now) != len(self._first) or not all(
            one.dtype == two.dtype and torch.equal(one, two) for one, two in zip(now, self._first, strict=True)
        ):
            raise CallError(
                f"{what}: expected the weights of the first prompt, found others, changed in memory; record each into a folder of its own"
            )
