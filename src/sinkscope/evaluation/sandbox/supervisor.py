"""The trusted process of the sandbox: it builds the confinement in which a program runs, asks the program for values, and judges.

It runs as ``python -I -S`` with nothing of the parent's but two pipes. The order matters: the processes of the program and of its
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
import signal
import sys
from types import CodeType
from typing import Any

from sinkscope.evaluation.sandbox.assertions import Assertion, shorten, split_program
from sinkscope.evaluation.sandbox.clock import Clock, ProgramFailed
from sinkscope.evaluation.sandbox.confined import Serve, serve_program, serve_tests, work
from sinkscope.evaluation.sandbox.foreign import Foreign
from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent, set_limit
from sinkscope.evaluation.sandbox.plain_data import DEEPEST, Numbering, unpack
from sinkscope.evaluation.sandbox.replies import read_reply

REPLY_BYTES = 16 << 20
OUTPUT_BYTES = 2000
STARTING_S = 30.0
ENDING_S = 0.005  # between two looks at a process that has closed its pipe, and ends as a rule at once


class TestsNeedTheProgram(Exception):
    """The tests pass something to the program that cannot leave their process."""


def main(box: str, memory_mb: str, cpu_s: str, clock_s: str, tested_apart: str, without: str) -> None:
    """Run one job. The output is a line of what is not enforced, and a line with the verdict."""
    die_with_parent()
    os.umask(0o022)  # whatever the user's is
    isolation = Isolation(without.split(","))
    isolation.enter_world(box)
    child = os.fork()  # the first process of the new namespace: when it ends, the kernel ends all others in there
    if child:
        os.close(0)
        os.close(1)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    isolation.give_up_rights()
    die_with_parent()  # again: the kernel drops this setting when a process changes its user
    serves = [serve_program, serve_tests] if tested_apart else [serve_program]
    workers = [Worker(isolation, int(memory_mb), int(cpu_s), serve) for serve in serves]
    _print({"not_enforced": list(dict.fromkeys(line for worker in workers for line in worker.not_enforced))})
    isolation.attempt(
        "own memory limit", set_limit, resource.RLIMIT_AS, 1 << 30
    )  # it reads and compiles a stranger's text
    isolation.attempt(
        "own time limit", set_limit, resource.RLIMIT_CPU, int(cpu_s) + 1
    )  # and compares a stranger's values
    job = json.loads(_read_all(0))
    clock = Clock(float(clock_s), int(cpu_s), [worker.pid for worker in workers])
    for worker in workers:
        worker.clock = clock
    verdict: dict[str, Any] = {"passed": False}
    try:
        count = run_and_judge(job["source"], workers[0])
        verdict |= {"passed": True, "reason": f"ran to its end, {count} assertions held" if count else "ran to its end"}
        if tested_apart:
            calls = run_tests(job["tests"], job["function"], *workers)
            verdict["reason"] = f"ran to its end, the tests held in {calls} calls"
    except ProgramFailed as failure:
        verdict |= {"passed": False, "reason": str(failure)}
    except TestsNeedTheProgram as need:
        verdict |= {"passed": False, "reason": str(need), "inside": True}
    outputs = [worker.end() for worker in workers]
    _print({"nonce": job["nonce"], "output": outputs[0], **verdict})


# A program and its top-level assertions


def run_and_judge(source: str, worker: "Worker") -> int:
    """Run a program part by part, and return how many top-level assertions held.

    Raises:
        ProgramFailed: it does not compile, an exception, an assertion that does not hold, a limit.
    """
    count, foreign = 0, dict[int, Foreign]()
    try:
        parts = list(split_program(source))
    except RecursionError as error:
        raise ProgramFailed("SyntaxError: nested too deeply") from error
    except (SyntaxError, ValueError, MemoryError, OverflowError) as error:
        raise ProgramFailed(f"{type(error).__name__}: {error}") from error
    sys.setrecursionlimit(DEEPEST)  # after compiling, whose own stack would grow with it
    for number, part in enumerate(parts):
        if not isinstance(part, Assertion):
            worker.answer("run", part)
            continue
        try:
            holds, found = part.holds(_Values(worker, number, foreign))
        except ProgramFailed:
            raise
        except Exception as error:  # of a comparison, or of a reply that the sandbox did not make
            raise ProgramFailed(f"{part.text}: {type(error).__name__}: {error}") from error
        if not holds:
            shown = f", found {shorten(', '.join(map(_shown, found)))}" if found else ""
            raise ProgramFailed(f"AssertionError: {part.text} does not hold{shown}")
        count += 1
    return count


class _Values:
    """The values of the operands of one assertion; one object in two of them is one object here.

    Args:
        assertion: its number.
        foreign: what stands for values that are no plain data.
    """

    def __init__(self, worker: "Worker", assertion: int, foreign: dict[int, Foreign]) -> None:
        self._worker, self._assertion, self._foreign = worker, assertion, foreign
        self._numbering = Numbering()

    def __call__(self, code: CodeType) -> Any:
        return self._read(self._worker.answer("value", code, assertion=self._assertion))

    def _read(self, reply: dict[str, Any]) -> Any:
        return read_reply(reply, self._numbering, self._foreign, [], self._more)

    def _more(self, request: dict[str, Any]) -> Any:
        reply = self._worker.ask(request)
        if "error" not in reply:
            return self._read(reply)
        error = str(reply["error"])[:500]
        if error.startswith("StopIteration"):
            raise StopIteration
        raise ProgramFailed(error)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError, MemoryError):  # a number of thousands of digits, say
        return f"a {type(value).__name__} that is too large to show"


# Tests that call a function of the program


def run_tests(tests: str, function: str, worker: "Worker", tester: "Worker") -> int:
    """Run tests in one process that call a function in another, and return the number of calls.

    Raises:
        ProgramFailed: there is no such function, a test does not hold, an exception, a limit; or the tests never call it.
        TestsNeedTheProgram: they pass something else than plain data.
    """
    worker.answer("run", compile(function, "<program>", "eval"))
    tester.tell({"tests": tests, "function": function})
    calls, last = 0, (None, {})
    while {"call", "iter", "next", "close"} & (heard := tester.hear()).keys():
        called = "call" in heard
        reply = worker.ask({"call": function, "arguments": heard["call"]} if called else heard)
        tester.tell(reply | {"error": str(reply["error"])[:500]} if "error" in reply else reply)
        calls, last = (calls + 1, (heard["call"], reply)) if called else (calls, last)
    if "unsendable" in heard:
        raise TestsNeedTheProgram(str(heard["unsendable"]))
    if heard.get("held") is not True:
        error = str(heard.get("error", "the tests did not end"))
        if error.startswith("SystemExit"):
            raise ProgramFailed(f"left before its end ({error})")
        raise ProgramFailed(f"{error}{_describe_call(function, *last) if calls else ''}")
    if not calls:
        raise ProgramFailed(
            f"the tests never called {function}, so they prove nothing; tests that are functions must be called at the end"
        )
    return calls


def _describe_call(function: str, arguments: Any, reply: dict[str, Any]) -> str:
    numbering = Numbering()
    try:
        positional, named = unpack(arguments, numbering)
        given = ", ".join([*map(_shown, positional), *(f"{name}={_shown(value)}" for name, value in named)])
        came = (
            "raised it" if "error" in reply else f"gave {shorten(_shown(read_reply(reply, numbering, {}, [], None)))}"
        )
    except Exception:  # a reply that the sandbox did not make
        return ""
    return f"; last call: {function}({shorten(given)}), which {came}"


class Worker:
    """A confined process, seen from here: the program's, or that of its tests."""

    def __init__(self, isolation: Isolation, memory_mb: int, cpu_s: int, serve: Serve) -> None:
        self.cpu_s = cpu_s
        theirs, self._requests = os.pipe()
        self._replies, answers = os.pipe()
        self._output = os.open("output", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        os.unlink("output")
        self.pid = os.fork()
        if not self.pid:
            work(theirs, answers, self._output, isolation, memory_mb, cpu_s, serve)
        os.close(theirs)
        os.close(answers)
        for pipe in (self._requests, self._replies):
            os.set_blocking(pipe, False)
        self._unread = b""
        self.clock = Clock(STARTING_S)
        self.not_enforced: list[str] = self.hear()["not_enforced"]

    def answer(self, verb: str, code: CodeType, **more: Any) -> dict[str, Any]:
        """Send code to run, or whose value is wanted, and return the reply.

        Raises:
            ProgramFailed: the program failed, ended, or ran into a limit.
        """
        reply = self.ask({verb: base64.b64encode(marshal.dumps(code)).decode(), **more})
        if "error" in reply:
            error = str(reply["error"])[:500]
            raise ProgramFailed(f"left before its end ({error})" if error.startswith("SystemExit") else error)
        return reply

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply, which may be an error.

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
        """Send a line.

        Raises:
            ProgramFailed: the process has ended, or reads nothing.
        """
        content = json.dumps(message).encode() + b"\n"
        while content:
            self.clock.wait([], [self._requests])
            try:
                content = content[os.write(self._requests, content) :]
            except BrokenPipeError:
                self._raise_ended()

    def hear(self) -> dict[str, Any]:
        """Return the next line; an empty message where it is none of ours.

        Raises:
            ProgramFailed: the process has ended, says nothing in time, or says too much.
        """
        while b"\n" not in self._unread:
            self.clock.wait([self._replies], [])
            part = os.read(self._replies, 1 << 16)
            if not part:
                self._raise_ended()
            self._unread += part
            if len(self._unread) > REPLY_BYTES:
                raise ProgramFailed(f"a value is larger than {REPLY_BYTES >> 20} MB")
        self.clock.limit_own()
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            reply = json.loads(line)
        except RecursionError as error:
            raise ProgramFailed("RecursionError: a value is nested too deeply to leave the program") from error
        except ValueError:
            reply = None
        return reply if isinstance(reply, dict) else {}

    def end(self) -> str:
        """End the process, and return the beginning of what it printed."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        return os.pread(self._output, OUTPUT_BYTES, 0).decode(errors="replace")

    def _raise_ended(self) -> None:
        """Raise ProgramFailed with the reason why the process ended; one that has only closed its pipe is waited for within the limit."""
        ended = 0
        while not ended:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if not ended:
                self.clock.tick([], [], ENDING_S)
        self.pid = 0
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


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
