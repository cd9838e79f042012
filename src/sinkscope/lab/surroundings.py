"""The settings of torch under which a run is made, whatever its caller has set."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sinkscope.models.devices import own_defaults


@contextmanager
def plain_torch(device: str) -> Iterator[None]:
    """Give the body gradients, float32, new tensors on the CPU and no autocast; the caller's settings and random state come back behind."""
    kinds = {"cpu", torch.device(device).type}
    dtype, cast = torch.get_default_dtype(), {kind: torch.is_autocast_enabled(kind) for kind in kinds}
    seeded = range(torch.cuda.device_count()) if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(seeded)), own_defaults(), torch.inference_mode(False), torch.enable_grad():
        try:
            torch.set_default_dtype(torch.float32)
            for kind in kinds:
                torch.set_autocast_enabled(kind, False)
            yield
        finally:
            torch.set_default_dtype(dtype)
            for kind, enabled in cast.items():
                torch.set_autocast_enabled(kind, enabled)
