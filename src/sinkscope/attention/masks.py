"""Masks as the attention of a network takes them."""

from typing import Any

import torch
from torch import Tensor


def mask_for(network: Any, seen: Tensor | None) -> Tensor | None:
    """Return which keys queries see in the form that a network's attention takes: transformers' eager one adds its mask to the scores.

    Args:
        network: of transformers, with its ``config`` and ``dtype``.
        seen: bool [1 or batch, 1, query, key]; None where all keys are seen.

    Returns:
        The same, or 0 and the smallest number of the network's dtype.
    """
    if seen is None or network.config._attn_implementation != "eager":
        return seen
    added = torch.zeros(seen.shape, dtype=network.dtype, device=seen.device)
    return added.masked_fill(~seen, torch.finfo(network.dtype).min)
