"""The limits of time of a job in the sandbox: by the clock, and of the processor. Standard library only."""

import resource
import select
import time
from collections.abc import Sequence

TICK_S = 0.1
LATE_S = 0.25  # so that the system's own limit comes first


class ProgramFailed(Exception):
    """The program did not pass; the message is the reason."""


class Clock:
    """The limits of a job: time by the clock, and processor time that its processes and this one spend together.

    Time by the clock in which this process itself gets no turn (a paused or overloaded machine) does not count.

    Args:
        seconds: by the clock.
        cpu_s: seconds of processor time.
        processes: the ids of the job's processes.
    """

    def __init__(self, seconds: float, cpu_s: float = float("inf"), processes: Sequence[int] = ()) -> None:
        self.seconds = self.left = seconds
        self.cpu_s, self.processes = cpu_s, processes

    def wait(self, reading: list[int], writing: list[int]) -> None:
        """Wait until a pipe is ready.

        Raises:
            ProgramFailed: none is in time.
        """
        while not self.tick(reading, writing, TICK_S):
            pass

    def tick(self, reading: list[int], writing: list[int], seconds: float) -> bool:
        """Return whether a pipe is ready within some seconds.

        Raises:
            ProgramFailed: there is no time left.
        """
        if self.left <= 0:
            raise ProgramFailed(f"ran past {self.seconds:g} s by the clock")
        self._processor_left()
        began = time.monotonic()
        ready = any(select.select(reading, writing, [], min(self.left, seconds)))
        self.left -= min(time.monotonic() - began, seconds)
        return ready

    def limit_own(self) -> None:
        """Let the system end this process where what it does next, such as comparing values, takes a second longer than is left.

        Raises:
            ProgramFailed: there is no time left.
        """
        used, left = time.process_time(), min(self._processor_left(), self.left)
        seconds = int(max(used + 1, used + left))
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if self.processes and (hard == resource.RLIM_INFINITY or seconds < hard):
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    def _processor_left(self) -> float:
        if not self.processes:
            return self.cpu_s
        left = self.cpu_s - time.process_time() - sum(map(_processor_time, self.processes))
        if left < -LATE_S:
            raise ProgramFailed(f"used more than {self.cpu_s:g} s of CPU")
        return left


def _processor_time(process: int) -> float:
    """Return the seconds of processor time that another process has used; 0 for one that has ended."""
    try:
        return time.clock_gettime(~process << 3 | 2)  # Linux's number for the processor clock of a process
    except OSError:
        return 0.0
