"""`run_program`: untrusted Python in a process of its own, without network, other files, other processes, or much of anything.

Processes: this one; a supervisor, which makes the world, holds the expected values and judges; the program's own, forked
from the supervisor before it knew either; and, for tests that call a function of the program, one more in which they run.

What is not covered: assertions at the top level of the program itself that compare with something else than a literal
(``assert close(a, b)``) run in its own process, and a program that is written against them can claim to have passed them
(pass ``tests`` to have them run elsewhere); a look-up table of the right answers passes; a function may hold answers from one
call to the next; side channels, and bugs of the kernel; a folder's total size where the system grants no namespaces. A value
that equals another without being plain data (a class with an ``__eq__`` of its own) counts as different. Threads cannot be started.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from sinkscope.errors import CallError, EvaluationError

LEAST_MEMORY_MB = 64
GRACE_S = 60.0  # for making the world and compiling; the program's own clock runs in the supervisor
BY_THE_CLOCK = 10  # times the CPU time: on a busy machine a right answer is late, not wrong
INSIDE = "; its tests ran in the program's own process, since they pass what cannot leave one"
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


def run_program(
    source: str,
    *,
    tests: str = "",
    function: str = "",
    timeout_s: float = 5.0,
    memory_mb: int = 512,
    without: tuple[str, ...] = (),
) -> ProgramResult:
    """Runs untrusted Python, tests included, and says whether it passed.

    Args:
        source: the program; it sees Python's standard library, an empty folder it may write to, no environment and
            an empty standard input.
        tests: Python that runs after it in another process, where ``function`` is there and asks the program's process:
            arguments and results travel as plain data. Nothing else of the program is there.
        function: the name of the one function of the program that ``tests`` call.
        timeout_s: seconds of CPU time, rounded up; ten times as many by the clock, for programs that wait.
        memory_mb: megabytes of address space, at least 64.
        without: measures to leave out, for testing what the others hold: ``namespaces``, ``own root``, ``other user``,
            ``landlock``, ``seccomp``, ``process limit``, ….

    Raises:
        CallError: limits that make no sense, tests without a function or the reverse.
        EvaluationError: the sandbox itself cannot run here.
    """
    if not isinstance(source, str):
        raise CallError(f"source: expected a program as text, found {type(source).__name__}")
    if bool(tests) != function.isidentifier():
        raise CallError(f"tests, function: expected tests and the name of the function they call, or neither, found function={function!r}")
    if not 0 < timeout_s < float("inf"):
        raise CallError(f"timeout_s: expected seconds above 0, found {timeout_s}")
    if memory_mb < LEAST_MEMORY_MB:
        raise CallError(f"memory_mb: expected at least {LEAST_MEMORY_MB}, since Python itself needs some, found {memory_mb}")
    nonce, clock_s = secrets.token_hex(16), BY_THE_CLOCK * timeout_s
    with tempfile.TemporaryDirectory(prefix="sinkscope-", ignore_cleanup_errors=True) as box:
        limits = [box, str(memory_mb), str(ceil(timeout_s)), str(clock_s), "1" if tests else "", ",".join(without)]
        job = {"source": source, "tests": tests, "function": function, "nonce": nonce}
        lines, errors = _supervise(limits, json.dumps(job), clock_s)
    if not lines or "not_enforced" not in lines[0]:
        said = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise EvaluationError(f"the sandbox did not start: {said[0]}; programs cannot be run here")
    not_enforced = tuple(lines[0]["not_enforced"])
    if len(lines) < 2 or lines[1].get("nonce") != nonce:
        reason = "the sandbox ended without a verdict: the program broke it, or is too large to compile"
        return ProgramResult(False, reason, "", not_enforced)
    verdict = lines[1]
    if verdict.get("inside"):
        result = run_program(f"{source}\n{tests}", timeout_s=timeout_s, memory_mb=memory_mb, without=without)
        return replace(result, reason=result.reason + INSIDE)
    return ProgramResult(verdict["passed"] is True, verdict["reason"], verdict["output"], not_enforced)


def _supervise(limits: list[str], job: str, clock_s: float) -> tuple[list[dict], str]:
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
            output, errors = _wait(process, job, clock_s + GRACE_S)
        except BaseException:
            _kill_group(process.pid)
            raise
    try:
        return [json.loads(line) for line in output.splitlines()], errors.decode(errors="replace")
    except ValueError:
        return [], f"{output[:80]!r} is not what a sandbox says"


def _wait(process: subprocess.Popen[bytes], job: str, seconds: float) -> tuple[bytes, bytes]:
    """Everything it says; it is ended after so many seconds in which this process had its turn."""
    content: bytes | None = job.encode()
    for _ in range(ceil(seconds)):
        try:
            return process.communicate(content, timeout=1.0)
        except subprocess.TimeoutExpired:
            content = None
    _kill_group(process.pid)
    return process.communicate()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
