"""A local job's own process, which ends when the call that submitted it does; the rest of the package is loaded once it is watched."""

import contextlib
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

LOOK_S = 0.2


def run_bound(work: bytes, held: Path | None) -> Any:
    """Call a pickled `functools.partial` and return its result.

    Args:
        work: the pickled call. It comes as bytes, so that reading it, which imports what it names, is part of what is watched.
        held: a lock; this process ends with status 130 when nobody holds it any more. None: it runs to its end.
    """
    if held is not None:
        threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    return pickle.loads(work)()


def _end_with(held: Path) -> None:
    import filelock

    while held.exists():
        with contextlib.suppress(filelock.Timeout, OSError), filelock.FileLock(held, blocking=False):
            break
        time.sleep(LOOK_S)
    os._exit(130)
