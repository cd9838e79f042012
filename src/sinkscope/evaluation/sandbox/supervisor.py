"""The trusted process of the sandbox: it makes the world in which a program runs, asks the program for values, and judges.

It runs as ``python -I -S`` with nothing of the parent's but two pipes. Order matters: the worker is forked before the
job is read, so neither the expected values of a test nor the parent's nonce were ever in the worker's memory.
Standard library only.
"""

import base64
import json
import marshal
import os
import resource
import secrets
import select
import signal
import sys
import time
from typing import Any

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent, set_limit
from sinkscope.evaluation.sandbox.pieces import Piece, shorten, split_program
from sinkscope.evaluation.sandbox.plain_values import unpack
from sinkscope.evaluation.sandbox.worker import work

REPLY_BYTES = 4 << 20
SHOWN = 2000


class ProgramFailed(Exception):
    """The program did not pass; the message is the reason."""


def main(box: str, memory_mb: str, cpu_s: str, timeout_s: str, without: str) -> None:
    """Runs one job; its output is a line of what is not enforced, and a line with the verdict."""
    die_with_parent()
    isolation = Isolation(without.split(","))
    isolation.enter_world(box)
    child = os.fork()  # the first process of the new namespace: when it ends, the kernel ends all others in there
    if child:
        os.close(0)
        os.close(1)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    isolation.give_up_rights()
    die_with_parent()  # after it: a change of user forgets the wish
    worker = Worker(isolation, int(memory_mb), int(cpu_s), float(timeout_s))
    _say({"not_enforced": worker.not_enforced})
    isolation.attempt("own memory limit", set_limit, resource.RLIMIT_AS, 1 << 30)  # it reads and compiles a stranger's text
    job = json.loads(_read_all(0))
    try:
        count = judge(job["source"], worker)
        passed, reason = True, f"ran to its end, {count} assertions held" if count else "ran to its end"
    except ProgramFailed as failure:
        passed, reason = False, str(failure)
    _say({"nonce": job["nonce"], "passed": passed, "reason": reason, "output": worker.end()})


def judge(source: str, worker: "Worker") -> int:
    """Runs a program piece by piece and counts its top-level assertions.

    Raises:
        ProgramFailed: it does not compile, an exception, an assertion that does not hold, a limit.
    """
    count = 0
    try:
        pieces = list(split_program(source))
    except RecursionError as error:
        raise ProgramFailed("SyntaxError: nested too deeply") from error
    except (SyntaxError, ValueError, MemoryError, OverflowError) as error:
        raise ProgramFailed(f"{type(error).__name__}: {error}") from error
    for piece in pieces:
        reply = worker.ask(piece) if piece.code is not None else {}
        if piece.verb == "run":
            continue
        try:
            value = Foreign(str(reply["foreign"])[:80]) if "foreign" in reply else unpack(reply.get("value"))
            holds = piece.holds(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise ProgramFailed(f"{piece.text}: {type(error).__name__}: {error}") from error
        if not holds:
            found = "" if piece.code is None else f", found {shorten(repr(value))}"
            raise ProgramFailed(f"AssertionError: {piece.text} does not hold{found}")
        count += 1
    return count


class Foreign:
    """Stands for a value that is not plain data: equal to nothing, and not None."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a {self.kind}, which is not plain data and cannot be compared outside the program"


class Worker:
    """The program's process, seen from here."""

    def __init__(self, isolation: Isolation, memory_mb: int, cpu_s: int, timeout_s: float) -> None:
        self.memory_mb, self.cpu_s, self.timeout_s = memory_mb, cpu_s, timeout_s
        theirs, self._requests = os.pipe()
        self._replies, answers = os.pipe()
        self._output = os.open("output", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        os.unlink("output")
        self._pid = os.fork()
        if not self._pid:
            work(theirs, answers, self._output, isolation, memory_mb, cpu_s)
        os.close(theirs)
        os.close(answers)
        for pipe in (self._requests, self._replies):
            os.set_blocking(pipe, False)
        self._unread = b""
        self._deadline = time.monotonic() + 30
        self.not_enforced: list[str] = self._receive()["not_enforced"]
        self._deadline = 0.0

    def ask(self, piece: Piece) -> dict[str, Any]:
        """Sends a piece and waits for its reply; the clock starts with the first one.

        Raises:
            ProgramFailed: the program failed, ended, or ran into a limit.
        """
        self._deadline = self._deadline or time.monotonic() + self.timeout_s
        token = secrets.token_hex(16)
        request = {"token": token, piece.verb: base64.b64encode(marshal.dumps(piece.code)).decode()}
        self._send(json.dumps(request).encode() + b"\n")
        reply = self._receive()
        if reply.get("token") != token:
            raise ProgramFailed("the program wrote into the sandbox's own pipe")
        if "error" in reply:
            error = str(reply["error"])[:500]
            raise ProgramFailed(f"left before its end ({error})" if error.startswith("SystemExit") else error)
        return reply

    def end(self) -> str:
        """Ends the program's process; returns the beginning of what it printed."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        return os.pread(self._output, SHOWN, 0).decode(errors="replace")

    def _send(self, content: bytes) -> None:
        while content:
            self._wait([], [self._requests])
            try:
                content = content[os.write(self._requests, content) :]
            except BrokenPipeError:
                self._ended()

    def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            self._wait([self._replies], [])
            part = os.read(self._replies, 1 << 16)
            if not part:
                self._ended()
            self._unread += part
            if len(self._unread) > REPLY_BYTES:
                raise ProgramFailed(f"a value is larger than {REPLY_BYTES >> 20} MB")
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            reply = None
        return reply if isinstance(reply, dict) else {}

    def _wait(self, reading: list[int], writing: list[int]) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or not any(select.select(reading, writing, [], left)):
            raise ProgramFailed(f"ran past {self.timeout_s:g} s")

    def _ended(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXFSZ:
            raise ProgramFailed("wrote more than 1 MB")
        if code == -signal.SIGXCPU:
            raise ProgramFailed(f"used more than {self.cpu_s} s of CPU")
        if code < 0:
            raise ProgramFailed(f"ended by signal {-code} ({signal.Signals(-code).name})")
        raise ProgramFailed(f"left before its end (exit status {code})")


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
