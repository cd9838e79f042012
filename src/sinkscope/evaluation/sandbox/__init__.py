"""`run_program`: untrusted Python in a process of its own, without network, other files, other processes, or much of anything.

Three processes: this one; a supervisor, which makes the world, holds the expected values and judges; and the
program's own, forked from the supervisor before it knew either.

What is not covered: a program that is written against this very sandbox, and whose tests are not top-level assertions
that compare with a literal (``check(candidate)`` as in HumanEval, ``assert close(a, b)``), can claim to have passed
them, since they run in its own process; a look-up table of the right answers passes as well; side channels, and bugs
of the kernel; a folder's total size where the system grants no namespaces. A value that equals a literal without being
plain data (``Fraction(1, 2) == 0.5``) counts as different. Threads cannot be started.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from sinkscope.errors import CallError, EvaluationError

LEAST_MEMORY_MB = 64
GRACE_S = 60.0  # for making the world and compiling; the program's own clock runs in the supervisor
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from sinkscope.evaluation.sandbox.supervisor import main
del sys.path[0]
main(*sys.argv[2:])
"""


@dataclass(frozen=True)
class ProgramResult:
    """What came of a program.

    Attributes:
        passed: it ran to its end, and every assertion on the way held.
        reason: in one line, why or why not.
        output: the first 2,000 bytes of what it printed.
        not_enforced: protections this system did not give, one line each with what it said; empty where all held.
    """

    passed: bool
    reason: str
    output: str = ""
    not_enforced: tuple[str, ...] = ()


def run_program(source: str, *, timeout_s: float = 5.0, memory_mb: int = 512, without: tuple[str, ...] = ()) -> ProgramResult:
    """Runs untrusted Python, tests included, and says whether it passed.

    Args:
        source: the program; it sees Python's standard library, an empty folder it may write to, no environment and
            an empty standard input.
        timeout_s: seconds by the clock, and of CPU time rounded up.
        memory_mb: megabytes of address space, at least 64.
        without: measures to leave out, for testing what the others hold: ``namespaces``, ``own root``, ``other user``,
            ``landlock``, ``seccomp``, ``process limit``, ….

    Raises:
        CallError: limits that make no sense.
        EvaluationError: the sandbox itself cannot run here.
    """
    if not isinstance(source, str):
        raise CallError(f"source: expected a program as text, found {type(source).__name__}")
    if not 0 < timeout_s < float("inf"):
        raise CallError(f"timeout_s: expected seconds above 0, found {timeout_s}")
    if memory_mb < LEAST_MEMORY_MB:
        raise CallError(f"memory_mb: expected at least {LEAST_MEMORY_MB}, since Python itself needs some, found {memory_mb}")
    nonce = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="sinkscope-", ignore_cleanup_errors=True) as box:
        limits = [box, str(memory_mb), str(ceil(timeout_s)), str(timeout_s), ",".join(without)]
        lines, errors = _supervise(limits, json.dumps({"source": source, "nonce": nonce}), timeout_s)
    if not lines or "not_enforced" not in lines[0]:
        said = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise EvaluationError(f"the sandbox did not start: {said[0]}; programs cannot be run here")
    not_enforced = tuple(lines[0]["not_enforced"])
    if len(lines) < 2 or lines[1].get("nonce") != nonce:
        reason = "the sandbox ended without a verdict: the program broke it, or is too large to compile"
        return ProgramResult(False, reason, "", not_enforced)
    verdict = lines[1]
    return ProgramResult(verdict["passed"] is True, verdict["reason"], verdict["output"], not_enforced)


def _supervise(limits: list[str], job: str, timeout_s: float) -> tuple[list[dict], str]:
    """What the supervisor said, line by line, and what went to its standard error."""
    package = str(Path(__file__).parents[3])
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}  # some Pythons do not start without
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, package, *limits]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise EvaluationError(f"the sandbox did not start: {error.strerror}; programs cannot be run here") from error
    with process:
        try:
            output, errors = process.communicate(job.encode(), timeout=timeout_s + GRACE_S)
        except subprocess.TimeoutExpired:
            _kill_group(process.pid)
            output, errors = process.communicate()
        except BaseException:
            _kill_group(process.pid)
            raise
    try:
        return [json.loads(line) for line in output.splitlines()], errors.decode(errors="replace")
    except ValueError:
        return [], f"{output[:80]!r} is not what a sandbox says"


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
