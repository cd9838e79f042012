"""`run_program` runs untrusted Python in a separate process, without network, other processes or files, except in an empty folder.

There are three or four processes. This one starts a supervisor (`supervisor`), which confines itself, holds the expected values and
judges. The program runs in a process that was forked from the supervisor before the supervisor knew those values. Tests that call a
function of the program run in one more. They exchange only plain data (`confined`). `isolation` holds the confinement.

Limits. An assertion at the top level of the program that is no comparison with a literal (``assert close(a, b)``) is computed in the
program's own process, so a program written against it can claim to have passed; pass ``tests`` to have them run elsewhere. A look-up
table of the right answers passes. A function may keep answers from one call to the next. Side channels and bugs of the kernel are not
covered, nor is a folder's total size where the system grants no namespaces. A value that is no plain data (a class with an ``__eq__``
of its own) counts as different from everything. Threads cannot be started.
"""

import contextlib
import errno
import json
import keyword
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from sinkscope.argument_types import check_argument
from sinkscope.documents import printable, shown
from sinkscope.errors import CallError, EvaluationError

LEAST_MEMORY_MB, MOST_MEMORY_MB = 64, 1 << 24
GRACE_S = 60.0  # for the confinement and for compiling; the program's own clock runs in the supervisor
LONGEST_S = 86_400
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
    """Whether a program passed, and why.

    Attributes:
        passed: whether it ran to its end and every assertion on the way held.
        reason: in one line, why or why not.
        output: the first 2,000 bytes that it printed.
        not_enforced: protections that this system refused, one line each with the system's message; empty where all held.
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
    """Run untrusted Python, tests included, and return whether it passed.

    Args:
        source: the program; it sees Python's standard library, an empty folder it may write to, no environment and
            an empty standard input.
        tests: Python that runs after it in another process. Of the program only ``function`` is there; calling it asks the program's
            process, and arguments and results travel as plain data.
        function: the name of the one function of the program that ``tests`` call.
        timeout_s: seconds of CPU time, rounded up, of the program, its tests and the comparisons together; ten times as many by the
            clock, for programs that wait.
        memory_mb: megabytes of address space, 64 to 16,777,216.
        without: measures to leave out, to test what the others prevent: ``namespaces``, ``own root``, ``other user``,
            ``landlock``, ``seccomp``, ``process limit``, ….

    Raises:
        CallError: limits that make no sense, tests without a function or the reverse.
        EvaluationError: the sandbox itself cannot run here.
    """
    if not isinstance(source, str):
        raise CallError(f"source: expected a program as text, found {type(source).__name__}")
    for name, value in (("tests", tests), ("function", function)):
        check_argument(name, value, str)
    for name, value, hint in (
        ("timeout_s", timeout_s, float),
        ("memory_mb", memory_mb, int),
        ("without", without, tuple[str, ...]),
    ):
        check_argument(name, value, hint)
    if bool(tests) != (function.isidentifier() and not keyword.iskeyword(function)):
        raise CallError(
            f"tests, function: expected tests and the name of the function they call, or neither, found function={shown(function)}"
        )
    if not 0 < timeout_s < float("inf"):
        raise CallError(f"timeout_s: expected seconds above 0, found {timeout_s}")
    if timeout_s > LONGEST_S:
        raise CallError(f"timeout_s: expected at most {LONGEST_S:,} seconds, found {timeout_s:g}")
    if memory_mb < LEAST_MEMORY_MB:
        raise CallError(
            f"memory_mb: expected at least {LEAST_MEMORY_MB}, since Python itself needs some, found {memory_mb}"
        )
    if memory_mb > MOST_MEMORY_MB:
        raise CallError(f"memory_mb: expected at most {MOST_MEMORY_MB:,}, found {shown(memory_mb)}")
    function = unicodedata.normalize("NFKC", function)  # as Python reads names
    nonce, clock_s = secrets.token_hex(16), BY_THE_CLOCK * timeout_s
    with _box() as box:
        limits = [box, str(memory_mb), str(ceil(timeout_s)), str(clock_s), "1" if tests else "", ",".join(without)]
        job = {"source": source.removeprefix("\ufeff"), "tests": tests, "function": function, "nonce": nonce}
        lines, errors, status = _supervise(limits, json.dumps(job), clock_s)
    if not lines or "not_enforced" not in lines[0]:
        said = errors.strip().splitlines()[-1:] or ["it said nothing"]
        raise _did_not_start(re.sub(r"^\w+: \[Errno \d+\] ", "", said[0]))  # the system's words, without Python's
    not_enforced = tuple(lines[0]["not_enforced"])
    if len(lines) < 2 or lines[1].get("nonce") != nonce:
        reason = "the sandbox ended without a verdict: the program broke it, or is too large to compile or to compare"
        if status == -signal.SIGXCPU & 0xFF:
            reason = f"used more than {ceil(timeout_s)} s of CPU to compile it or to compare its values"
        return ProgramResult(False, reason, "", not_enforced)
    verdict = lines[1]
    if verdict.get("inside"):
        result = run_program(f"{source}\n{tests}", timeout_s=timeout_s, memory_mb=memory_mb, without=without)
        return replace(result, reason=result.reason + INSIDE)
    reason, output = (
        verdict[name].encode(errors="backslashreplace").decode() for name in ("reason", "output")
    )  # lone surrogates
    return ProgramResult(verdict["passed"] is True, printable(" ".join(reason.splitlines())), output, not_enforced)


def _did_not_start(reason: str) -> EvaluationError:
    enough = "; allow more processes (ulimit -u)" if reason.startswith(os.strerror(errno.EAGAIN)) else ""
    return EvaluationError(f"the sandbox did not start: {reason}; programs cannot be run here{enough}")


@contextlib.contextmanager
def _box() -> Iterator[str]:
    """Make an empty folder, and remove it whatever a program has put there."""
    box = tempfile.mkdtemp(prefix="sinkscope-")
    try:
        os.chmod(box, 0o700)  # whatever the umask is
        yield box
    finally:
        remove_folder(box)


def remove_folder(folder: str) -> None:
    """Remove a folder of any depth and any length of paths: it walks down and up one folder at a time.

    What the system refuses to remove stays, without an error.
    """
    with contextlib.suppress(OSError):
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            above: list[
                tuple[str, list[str]]
            ] = []  # names of the folders on the way, and what waits in the folder above each
            waiting = _unlink_files(here)
            while waiting or above:
                if waiting:
                    name = waiting.pop()
                    os.chmod(name, 0o700, dir_fd=here)
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                    above.append((name, waiting))
                    waiting = _unlink_files(inner)
                else:
                    inner = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
                    name, waiting = above.pop()
                    os.rmdir(name, dir_fd=inner)
                os.close(here)
                here = inner
        finally:
            os.close(here)
        os.rmdir(folder)


def _unlink_files(folder: int) -> list[str]:
    """Remove everything in an open folder but the folders, and return their names."""
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
    return [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


def _supervise(limits: list[str], job: str, clock_s: float) -> tuple[list[dict], str, int]:
    """Run the supervisor; return what it printed, line by line, its standard error, and its exit status."""
    package = str(Path(__file__).parents[3])
    environment = {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ
    }  # some Pythons do not start without
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, package, *limits]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise _did_not_start(str(error.strerror)) from error
    with process:
        try:
            output, errors = _wait(process, job, clock_s + GRACE_S)
        except BaseException:
            _kill_group(process.pid)
            raise
    try:
        return [json.loads(line) for line in output.splitlines()], errors.decode(errors="replace"), process.returncode
    except ValueError:
        return [], f"{output[:80]!r} is not what a sandbox says", process.returncode


def _wait(process: subprocess.Popen[bytes], job: str, seconds: float) -> tuple[bytes, bytes]:
    """Return standard output and error of a process; end it after so many seconds in which this process had its turn."""
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
