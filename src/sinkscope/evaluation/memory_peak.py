"""The peak memory of a piece of work: on a GPU by torch's count, on a CPU the process's by the system's."""

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """The peak in bytes, once the work is done; None where the system does not tell."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measure the peak while the body runs; a GPU's work is waited for at both ends."""
    found = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        torch.cuda.synchronize(device)
        found.bytes = torch.cuda.max_memory_allocated(device)
        return
    try:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # gives free memory back
        _RESET.write_text("5")  # the system's peak begins anew
    except OSError:
        yield found
        return
    yield found
    lines = _STATUS.read_text().splitlines()
    found.bytes = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
