"""The devices for a model, torch's defaults during our own work, and errors for lack of memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from sinkscope.errors import CallError, first_line


def find_device(device: Any) -> torch.device:
    """Return a device that holds numbers; raise CallError where there is none such, or torch was built without it."""
    try:
        found = torch.device(device)
        torch.zeros(1, device=found).item()  # not on meta
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CallError(f"device '{device}' cannot be used here ({first_line(error)}); pass device='cpu'") from error
    return found


def own_device(device: str) -> str:
    """Return a device; ``cuda`` under torchrun is that of the process, by LOCAL_RANK."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


@contextmanager
def own_defaults() -> Iterator[None]:
    """Put new tensors of the body on the CPU, whatever torch's default is, and let no earlier autocast cast weights."""
    # The cache keeps weights as they were cast, though they have changed, until its region ends.
    torch.clear_autocast_cache()
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice: on a CPU torch raises a plain RuntimeError."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(one in str(error) for one in words)
