"""The devices that a model can be put on here, and how one says that its memory did not suffice."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from sinkscope.errors import CallError

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def find_device(device: Any, flag: str = "device") -> torch.device:
    """Return a device that holds numbers and can be used here.

    Args:
        device: such as ``cpu``, ``cuda``, ``cuda:1``, or a `torch.device`.
        flag: how messages call it.

    Raises:
        CallError: there is no such device, or torch was built without it.
    """
    try:
        found = torch.device(device)
        if found.type == "meta":
            raise RuntimeError("tensors there have no values")
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        expected = f"expected one of {', '.join(usable_devices())}; pass {flag}='cpu'"
        raise CallError(f"{flag} {str(device)!r} cannot be used here: {expected}") from error
    return found


def own_device(device: str) -> str:
    """Return a device; ``cuda`` under torchrun is that of the process, by LOCAL_RANK."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


@contextmanager
def own_defaults() -> Iterator[None]:
    """Give the body new tensors on the CPU, whatever torch's default is, and weights that no autocast of the caller's
    has cast before.
    """
    # The cache keeps weights as they were cast, though they have changed, until its region ends.
    torch.clear_autocast_cache()
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice: on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error) for words in _OUT_OF_MEMORY
    )


def usable_devices() -> list[str]:
    """Return the names of the devices that can be used here."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        names.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        names.append("xpu")
    return names
