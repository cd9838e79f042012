"""The trusted process of the sandbox: it makes the world in which a program runs, asks the program for values, and judges.

It runs as ``python -I -S`` with nothing of the parent's but two pipes. Order matters: the processes of the program and of its
tests are forked before the job is read, so neither the expected values of a test nor the parent's nonce were ever in the
program's memory.
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

from sinkscope.evaluation.sandbox.examiner import serve_tests
from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent, set_limit
from sinkscope.evaluation.sandbox.pieces import Piece, shorten, split_program
from sinkscope.evaluation.sandbox.plain_values import unpack, unpack_reply
from sinkscope.evaluation.sandbox.worker import Serve, serve_program, work

REPLY_BYTES = 4 << 20
SHOWN = 2000
STARTING_S = 30.0
TICK_S = 0.1


class ProgramFailed(Exception):
    """The program did not pass; the message is the reason."""


class TestsNeedTheProgram(Exception):
    """The tests pass something to the program that cannot leave their process."""


class Clock:
    """Time by the clock, but for what passes while this process itself gets no turn: on a paused or overloaded machine."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self.left = seconds

    def wait(self, reading: list[int], writing: list[int]) -> None:
        """Until a pipe is ready.

        Raises:
            ProgramFailed: none is in time.
        """
        while self.left > 0:
            began = time.monotonic()
            ready = any(select.select(reading, writing, [], min(self.left, TICK_S)))
            self.left -= min(time.monotonic() - began, TICK_S)
            if ready:
                return
        raise ProgramFailed(f"ran past {self.seconds:g} s by the clock")


def main(box: str, memory_mb: str, cpu_s: str, clock_s: str, examined: str, without: str) -> None:
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
    workers = [
        Worker(isolation, int(memory_mb), int(cpu_s), serve) for serve in ([serve_program, serve_tests] if examined else [serve_program])
    ]
    _say({"not_enforced": list(dict.fromkeys(line for worker in workers for line in worker.not_enforced))})
    isolation.attempt("own memory limit", set_limit, resource.RLIMIT_AS, 1 << 30)  # it reads and compiles a stranger's text
    job = json.loads(_read_all(0))
    clock = Clock(float(clock_s))
    for worker in workers:
        worker.clock = clock
    verdict: dict[str, Any] = {"passed": False}
    try:
        count = judge(job["source"], workers[0])
        verdict |= {"passed": True, "reason": f"ran to its end, {count} assertions held" if count else "ran to its end"}
        if examined:
            calls = examine(job["tests"], job["function"], *workers)
            verdict["reason"] = f"ran to its end, the tests held in {calls} calls"
    except ProgramFailed as failure:
        verdict |= {"passed": False, "reason": str(failure)}
    except TestsNeedTheProgram as need:
        verdict |= {"passed": False, "reason": str(need), "inside": True}
    outputs = [worker.end() for worker in workers]
    _say({"nonce": job["nonce"], "output": outputs[0], **verdict})


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
        reply = worker.answer(piece) if piece.code is not None else {}
        if piece.verb == "run":
            continue
        try:
            value = unpack_reply(reply)
            holds = piece.holds(value)
        except (TypeError, ValueError, RecursionError, ArithmeticError) as error:
            raise ProgramFailed(f"{piece.text}: {type(error).__name__}: {error}") from error
        if not holds:
            found = "" if piece.code is None else f", found {shorten(repr(value))}"
            raise ProgramFailed(f"AssertionError: {piece.text} does not hold{found}")
        count += 1
    return count


def examine(tests: str, function: str, worker: "Worker", examiner: "Worker") -> int:
    """Runs tests in one process that call a function in the other, and counts the calls.

    Raises:
        ProgramFailed: there is no such function, a test does not hold, an exception, a limit.
        TestsNeedTheProgram: they pass something else than plain data.
    """
    worker.answer(Piece("run", compile(function, "<program>", "eval")))
    examiner.tell({"tests": tests, "function": function})
    calls, last = 0, ([[], {}], {})
    while "call" in (said := examiner.hear()):
        reply = worker.ask({"call": function, "arguments": said["call"]})
        error = str(reply.get("error", ""))[:500]
        if error.startswith("SystemExit"):
            raise ProgramFailed(f"left before its end ({error})")
        examiner.tell({"error": error} if error else reply)
        calls, last = calls + 1, (said["call"], reply)
    if "unsendable" in said:
        raise TestsNeedTheProgram(str(said["unsendable"]))
    if said.get("held") is not True:
        raise ProgramFailed(f"{said.get('error', 'the tests did not end')}{_show_call(function, *last) if calls else ''}")
    return calls


def _show_call(function: str, arguments: Any, reply: dict[str, Any]) -> str:
    try:
        positional, named = unpack(arguments)
        shown = ", ".join([*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())])
        came = "raised it" if "error" in reply else f"gave {shorten(repr(unpack_reply(reply)))}"
    except (TypeError, ValueError, RecursionError, ArithmeticError):
        return ""
    return f"; last call: {function}({shorten(shown)}), which {came}"


class Worker:
    """A process of the sandbox, seen from here: the program's, or that of its tests."""

    def __init__(self, isolation: Isolation, memory_mb: int, cpu_s: int, serve: Serve) -> None:
        self.cpu_s = cpu_s
        theirs, self._requests = os.pipe()
        self._replies, answers = os.pipe()
        self._output = os.open("output", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        os.unlink("output")
        self._pid = os.fork()
        if not self._pid:
            work(theirs, answers, self._output, isolation, memory_mb, cpu_s, serve)
        os.close(theirs)
        os.close(answers)
        for pipe in (self._requests, self._replies):
            os.set_blocking(pipe, False)
        self._unread = b""
        self.clock = Clock(STARTING_S)
        self.not_enforced: list[str] = self.hear()["not_enforced"]

    def answer(self, piece: Piece) -> dict[str, Any]:
        """Sends a piece and waits for its reply.

        Raises:
            ProgramFailed: the program failed, ended, or ran into a limit.
        """
        reply = self.ask({piece.verb: base64.b64encode(marshal.dumps(piece.code)).decode()})
        if "error" in reply:
            error = str(reply["error"])[:500]
            raise ProgramFailed(f"left before its end ({error})" if error.startswith("SystemExit") else error)
        return reply

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and waits for its reply, which may tell of an error.

        Raises:
            ProgramFailed: the program ended, ran into a limit, or answered something else.
        """
        token = secrets.token_hex(16)
        self.tell({"token": token, **request})
        reply = self.hear()
        if reply.pop("token", None) != token:
            raise ProgramFailed("the program wrote into the sandbox's own pipe")
        return reply

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a line.

        Raises:
            ProgramFailed: the process has ended, or reads nothing.
        """
        content = json.dumps(message).encode() + b"\n"
        while content:
            self.clock.wait([], [self._requests])
            try:
                content = content[os.write(self._requests, content) :]
            except BrokenPipeError:
                self._ended()

    def hear(self) -> dict[str, Any]:
        """The next line; empty where it is none of ours.

        Raises:
            ProgramFailed: the process has ended, says nothing in time, or says too much.
        """
        while b"\n" not in self._unread:
            self.clock.wait([self._replies], [])
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

    def end(self) -> str:
        """Ends the program's process; returns the beginning of what it printed."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        return os.pread(self._output, SHOWN, 0).decode(errors="replace")

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
