"""Small tensors of the host on their way to a device, which nobody waits for."""

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; to a GPU by pinned memory, as a copy from any other waits for all that is under way there."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
