"""A trial of something that may take all time or memory, in a forked process that can be ended whatever it does."""

import contextlib
import faulthandler
import os
import signal
import time
import warnings
from collections.abc import Callable

from sinkscope.models.own_limits import limit_memory, limit_time

_TOO_LARGE = 3  # exit status
_CLOCK_S = 60.0


def ends_within(seconds: float, megabytes: int, work: Callable[[], object]) -> bool:
    """Return False where a function takes more processor time or address space; True where it ends, also by another error.

    It is called in a forked process, which prints nothing. True also where nothing can be known: no process can be forked, or it hangs
    without taking processor time.
    """
    if not hasattr(os, "fork"):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of threads: the child calls one function and takes no lock of Python's
            child = os.fork()
    except OSError:
        return True
    if not child:
        _try(seconds, megabytes, work)
    status = None
    try:
        status = _wait(child)
    except ChildProcessError:  # SIGCHLD is ignored, so that the system keeps no status
        return True
    finally:
        if status is None:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return status not in (-signal.SIGPROF, -signal.SIGABRT, _TOO_LARGE)


def _wait(child: int) -> int | None:
    """Return the status with which a process ends; None where it takes too long."""
    until, pause = time.monotonic() + _CLOCK_S, 0.001
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return None


def _try(seconds: float, megabytes: int, work: Callable[[], object]) -> None:
    """Call a function under its limits, and end this process: by SIGPROF after its time, with a status for memory."""
    import resource

    status = 0
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        faulthandler.disable()  # it would tell of an abort
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit_memory(megabytes)
        limit_time(seconds)
        work()
    except MemoryError:
        status = _TOO_LARGE
    finally:
        os._exit(status)
