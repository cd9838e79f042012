"""The work of a job: a share of an evaluation with its own model. The module loads little, so that a job watches before it loads more."""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkscope.evaluation.results import Result
    from sinkscope.work_items import Share

LOOK_S = 0.2


def run_share(
    model: str,
    device: str,
    dtype: str | None,
    arguments: Mapping[str, Any],
    share: "Share | None" = None,
    held: Path | None = None,
) -> "list[Result]":
    """Load a model and evaluate it; ``cuda`` under torchrun is the process's own device.

    Args:
        held: a lock; this process ends with status 130 when nobody holds it any more.
    """
    if held is not None:
        threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    from sinkscope.evaluation.running import evaluate
    from sinkscope.models import load
    from sinkscope.models.devices import own_device

    return evaluate(load(model, dtype=dtype, device=own_device(device)), **arguments, share=share)


def _end_with(held: Path) -> None:
    import filelock

    while held.exists():
        with contextlib.suppress(filelock.Timeout, OSError), filelock.FileLock(held, blocking=False):
            break
        time.sleep(LOOK_S)
    os._exit(130)
