"""The devices that a model can be put on here."""

import re
from typing import Any

import torch

from sinkscope.documents import shown
from sinkscope.errors import CallError


def find_device(device: Any, flag: str = "device") -> torch.device:
    """Return a device that holds numbers and can be used here.

    Args:
        device: such as ``cpu``, ``cuda``, ``cuda:1``, or a `torch.device`.
        flag: how messages call it.

    Raises:
        CallError: there is no such device, or torch was built without it.
    """
    name = device if isinstance(device, str) else str(device) if isinstance(device, torch.device) else shown(device)
    refused = f"{flag} {name[:60]!r} cannot be used here: expected one of {', '.join(usable_devices())}; pass {flag}='cpu'"
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
