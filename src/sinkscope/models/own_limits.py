"""Limits that a process sets to itself before it does a stranger's work."""

import signal
from pathlib import Path

_STATUS = Path("/proc/self/statm")


def limit_memory(megabytes: int) -> None:
    """Let this process have so many more megabytes of address space only, where the system tells what it has."""
    if not _STATUS.exists():
        return
    import resource

    most = int(_STATUS.read_text().split()[0]) * resource.getpagesize() + (megabytes << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))


def limit_time(seconds: float) -> None:
    """Let the system end this process by SIGPROF after so many more seconds of processor time, where it can; 0 takes the limit away."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
