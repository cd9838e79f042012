"""The trusted process of the sandbox: it builds the confinement, runs a program, and says whether it passed.

It runs as ``python -I -S`` with nothing of the parent's but its standard streams. Standard library only.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import sys
import time
import types

from sinkscope.evaluation.sandbox.isolation import Isolation, die_with_parent

REPLY_BYTES = 1 << 16
OUTPUT_BYTES = 2000
TICK_S = 0.1
ENDING_S = 0.005


def main(box: str, memory_mb: str, cpu_s: str, clock_s: str, without: str) -> None:
    """Run the program on the standard input, and print the verdict as JSON."""
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
    source, nonce = sys.stdin.buffer.read(), secrets.token_hex(16)
    replies, theirs = os.pipe()
    started, start = os.pipe()
    output = os.open("output", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    os.unlink("output")
    worker = os.fork()
    if not worker:
        _work(source, nonce, started, theirs, output, isolation, int(memory_mb), int(cpu_s))
    os.close(theirs)
    os.close(started)
    refused = b""
    while not refused.endswith(b"\n"):
        refused += os.read(replies, 1) or b"the program's process has ended\n"
    print(json.dumps({"not_enforced": json.loads(refused)}), flush=True)
    os.close(start)
    said, code = _listen(replies, worker, float(clock_s))
    passed = code == 0 and said.endswith(nonce.encode())
    reason = "ran to its end" if passed else _reason(said, code, cpu_s, clock_s)
    printed = os.pread(output, OUTPUT_BYTES, 0).decode(errors="replace")
    print(json.dumps({"passed": passed, "reason": reason, "output": printed}), flush=True)


def _listen(replies: int, worker: int, seconds: float) -> tuple[bytes, int | None]:
    """Return the end of what a process wrote and its exit code; None where it had to be killed after so many seconds
    in which this process had its turns.
    """
    said = b""
    while seconds > 0:
        began = time.monotonic()
        if select.select([replies], [], [], min(seconds, TICK_S))[0]:
            part = os.read(replies, REPLY_BYTES)
            said = (said + part)[-REPLY_BYTES:]
            if not part:
                ended, status = os.waitpid(worker, os.WNOHANG)
                if ended:
                    return said, os.waitstatus_to_exitcode(status)
                time.sleep(ENDING_S)
        seconds -= min(time.monotonic() - began, TICK_S)
    os.kill(worker, signal.SIGKILL)
    return said, None


def _reason(said: bytes, code: int | None, cpu_s: str, clock_s: str) -> str:
    if code is None:
        return f"ran past {float(clock_s):g} s by the clock"
    if code == -signal.SIGXFSZ:
        return "wrote more than 1 MB"
    if code == -signal.SIGXCPU:
        return f"used more than {cpu_s} s of CPU"
    if code < 0:
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return said.decode(errors="replace").rpartition("\n")[2] or f"left before its end (exit status {code})"


def _work(
    source: bytes, nonce: str, started: int, replies: int, output: int, isolation: Isolation, *limits: int
) -> None:
    """Confine this process, run the program, write the nonce if it comes to its end; never return."""
    die_with_parent()
    for old, new in ((replies, 20), (started, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.closerange(3, 20)
    os.closerange(21, 4096)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.environ.clear()
    sys.argv[1:] = []
    sys.path[:] = [path for path in sys.path if "site-packages" not in path]
    isolation.limit(*limits)
    os.write(20, f"{json.dumps(isolation.not_enforced())}\n".encode())
    os.read(0, 1)  # until the supervisor has closed it
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), module.__dict__)
        last = nonce
    except BaseException as error:  # SystemExit and KeyboardInterrupt end a program too
        try:
            last = " ".join(f"{type(error).__name__}: {error}".split())[:500].removesuffix(":")
        except BaseException:  # of the program's own text of its error
            last = type(error).__name__
        last = f"left before its end ({last})" if isinstance(error, SystemExit) else last
    with contextlib.suppress(Exception):  # a program may have closed it
        sys.stdout.flush()
    os.write(20, f"\n{last}".encode(errors="replace"))
    os._exit(0)
