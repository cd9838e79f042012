"""The devices that a model can be put on here, and how one says that its memory did not suffice."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from sinkscope.documents import shown
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
    name = device if isinstance(device, str) else str(device) if isinstance(device, torch.device) else shown(device)
    refused = (
        f"{flag} {name[:60]!r} cannot be used here: expected one of {', '.join(usable_devices())}; pass {flag}='cpu'"
    )
    known = re.fullmatch(r"([a-z]+)(?::(\d{1,4}))?", name)
    try:
        found = torch.device(name) if known else None
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda", "mps", "xpu") or (found.type == "cpu" and found.index):
        raise CallError(refused)
    try:
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise CallError(refused) from error
    return found


def own_device(device: str) -> str:
    """Return a device; ``cuda`` under torchrun is the process's own, by LOCAL_RANK, as else all processes would share the first."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "cuda" and local is not None else device


@contextmanager
def own_defaults() -> Iterator[None]:
    """Give the body new tensors on the CPU, whatever torch's default is, and weights that no autocast of the caller's has cast before."""
    torch.clear_autocast_cache()  # it keeps weights as it has cast them, though they have changed, until its region ends
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice.

    On a CPU torch raises a plain RuntimeError, and so it does for pinned memory.
    """
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
