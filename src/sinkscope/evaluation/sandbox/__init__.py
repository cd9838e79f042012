"""`run_program` runs untrusted Python in another process, without network, processes or files but an empty folder.

A supervisor enters namespaces and gives up its rights; its fork limits itself further (`isolation`), runs the program
with its tests, and prints a secret number: only then it has passed. A program that forges its own pass, by reading that
number out of its process, is not stopped, as in human-eval; nor are side channels and bugs of the kernel.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from sinkscope.errors import EvaluationError
from sinkscope.runs.files import printable

GRACE_S = 60.0  # for the confinement; the program's own clock runs in the supervisor
BY_THE_CLOCK = 10  # times the CPU time: on a busy machine a right answer is late, not wrong
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from sinkscope.evaluation.sandbox.supervisor import main
del sys.path[0]
main(*sys.argv[2:])
"""


@dataclass(frozen=True)
class ProgramResult:
    """Whether a program passed, why, the first 2,000 bytes that it printed, and protections that the system refused."""

    passed: bool
    reason: str
    output: str = ""
    not_enforced: tuple[str, ...] = ()


def run_program(
    source: str, *, timeout_s: float = 5.0, memory_mb: int = 512, without: tuple[str, ...] = ()
) -> ProgramResult:
    """Run untrusted Python, tests included, and return whether it passed.

    Args:
        timeout_s: seconds of CPU time, rounded up; ten times as many by the clock, for programs that wait.
        memory_mb: megabytes of address space.
        without: measures to leave out, to test what the others prevent: ``namespaces``, ``landlock``, ``seccomp``, ….
    """
    clock_s = BY_THE_CLOCK * timeout_s
    # some Pythons do not start without
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    box, package = tempfile.mkdtemp(prefix="sinkscope-"), str(Path(__file__).parents[3])
    limits = [box, str(memory_mb), str(ceil(timeout_s)), str(clock_s), ",".join(without)]
    try:
        done: Any = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, package, *limits],
            input=source.encode(errors="replace"),
            capture_output=True,
            timeout=clock_s + GRACE_S,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as late:
        done = late
    finally:
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(box)
    try:
        first, *rest = map(json.loads, (done.stdout or b"").splitlines())
        not_enforced = tuple(first["not_enforced"])
    except (ValueError, KeyError, TypeError) as error:
        said = ((done.stderr or b"").decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise EvaluationError(f"the sandbox did not start: {said}; programs cannot be run here") from error
    if not rest:
        return ProgramResult(False, "the program ended the sandbox, which gave no verdict", "", not_enforced)
    verdict = rest[0]
    reason = printable(" ".join(verdict["reason"].splitlines()))
    return ProgramResult(verdict["passed"], reason, verdict["output"], not_enforced)
