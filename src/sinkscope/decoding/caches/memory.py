"""What the memory of a cache comes to, and the message where it does not suffice."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sinkscope.errors import ModelError
from sinkscope.models import Model
from sinkscope.models.devices import is_out_of_memory

USABLE = 0.9
"""Share of the free memory that an estimate fills."""


def stored_bytes(model: Model, width: int) -> int:
    """Return the bytes of the keys and values of one canvas, over all layers."""
    config = model.network.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * dim * width * model.network.dtype.itemsize


def refresh_bytes(model: Model, width: int) -> int:
    """Return about what a refresh of one canvas needs beside them: hidden states and the widest layer, and its candidates' logits."""
    config, size = model.network.config, model.network.dtype.itemsize
    return width * (6 * config.hidden_size + 3 * config.intermediate_size) * size


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device; None where the system does not tell."""
    if device.type == "cuda":
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


@contextmanager
def saying_what_fits(model: Model, policy: str, rows: int, width: int, free: int | None) -> Iterator[None]:
    """Turn an error of memory of the body into `does_not_fit`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise does_not_fit(model, policy, rows, width, free) from error
        raise


def does_not_fit(model: Model, policy: str, rows: int, width: int, free: int | None) -> ModelError:
    """Return the error that says how many canvases would fit.

    Args:
        model: whose network ran out of memory.
        policy: text of the cache.
        rows, width: canvases of the batch, and their tokens.
        free: bytes that were free before the first of them was computed; None where the system does not tell.
    """
    stored, needed = stored_bytes(model, width), stored_bytes(model, width) + refresh_bytes(model, width)
    fitting = rows - 1 if free is None else min(rows - 1, int(USABLE * free / needed))
    if fitting >= 1:
        advice = f"about {fitting} would fit: use --batch {fitting}, or a smaller dtype"
    else:
        advice = "not even one would fit: shorten the prompt or --length, or use a smaller dtype or a device with more memory"
    room = "" if free is None else f", with {_told(free)} free"
    return ModelError(
        f"cache {policy}: out of memory with {rows} canvases of {width} tokens on {model.device}; keys and values of each take "
        f"{_told(stored)}, a refresh about {_told(needed - stored)} more{room}; {advice}"
    )


def _told(count: int) -> str:
    size, unit = next(
        (size, unit) for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")) if count >= size
    )
    return f"{count / size:.1f} {unit}"
