"""Runs commands in forked processes, and judges how they ended.

A case is good if it ends with status 1 or 2 and one message in our own words, in under two seconds of processor time, and leaves nothing
that looks whole. A case that may do no harm is also good with status 0.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
import resource
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

SECONDS, LONGEST = 2.0, 40.0
"""Of processor time that a refusal may take; by the clock, after which a case counts as a hang."""
MEMORY = 6 << 30
TURNS = int(os.environ.get("HOSTILE_TURNS", "25"))
"""Commands that share a forked process."""
LARGE = 2 << 20
"""KiB of memory at the most, from which on a process is not used again."""
LIBRARIES = (
    "matplotlib.backends.backend_agg matplotlib.backends.backend_pdf pydantic scipy.stats scipy.optimize transformers tyro "
    "transformers.models.llama.modeling_llama importlib.readers pyarrow.parquet xarray zarr filelock docstring_parser tokenizers"
).split()
"""What commands import when they need it."""
OURS = re.compile(r"sinkscope: error: .+")
_worker: "Worker | None" = None


@dataclass(frozen=True)
class Outcome:
    """How a command ended: ``status`` is None where it had to be killed."""

    arguments: tuple[str, ...]
    status: int | None
    out: str
    err: str
    cpu: float
    largest: int


def warm_up() -> None:
    """Import once what commands need, so that a forked process starts at once."""
    import torch

    import sinkscope

    torch.set_num_threads(1)
    names = [module.name for module in pkgutil.walk_packages(sinkscope.__path__, "sinkscope.")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*names, *LIBRARIES]:
            if not name.endswith(("__main__", ".triton", ".supervisor", ".confined", ".lm_eval")):
                with contextlib.suppress(ImportError):  # an extra that is not installed
                    importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page of these


def run(
    *arguments: str,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    largest_file: int | None = None,
    bound: bool = False,
    umask: int = 0o022,
) -> Outcome:
    """Run ``sinkscope`` with arguments in a forked process.

    Forking this process costs as much as a refusal does, so that several commands share one forked process, one after another;
    ``HOSTILE_TURNS=1`` gives each its own.

    Args:
        environment: variables to add.
        cwd: the current folder there.
        largest_file: bytes that a file may have: more of them are refused as a full disk refuses them.
        bound: permissions bind the command, also where this process is root's, whom they do not bind.
        umask: the permissions that new files do not get.
    """
    global _worker
    words = tuple(map(str, arguments))
    if TURNS == 1 or environment or umask != 0o022 or largest_file is not None or bound:
        worker = Worker(largest_file, bound, umask)
        outcome = worker.ask(words, environment, cwd)
        worker.end()
        return outcome
    _worker = _worker or Worker()
    outcome = _worker.ask(words, environment, cwd)
    if outcome.status in (None, 99) or _worker.asked >= TURNS or outcome.largest > LARGE:
        _worker.end()
        _worker = None
    return outcome


def _bind_root() -> None:
    """Give up what lets root pass permissions; another user might not be able to read the place where sinkscope is installed."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # capabilities(7), version 3, of this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable ones, twice 32 bits of each
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    for place in range(3):
        sets[place] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


class Worker:
    """A forked process that runs commands."""

    def __init__(self, largest_file: int | None = None, bound: bool = False, umask: int = 0o022) -> None:
        self.asked = 0
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        self._socket, theirs = socket.socketpair()
        self._process = os.fork()
        if not self._process:
            self._socket.close()
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
            os.umask(umask)
            if bound and os.getuid() == 0:
                _bind_root()
            _serve(theirs, self._out, self._err)
        theirs.close()
        self._answers = self._socket.makefile("rb")

    def ask(self, words: tuple[str, ...], environment: dict[str, str] | None, cwd: Path | None) -> Outcome:
        """Run a command; one that does not come back is killed, and the process with it."""
        self.asked += 1
        self._socket.sendall(json.dumps([words, environment or {}, None if cwd is None else str(cwd)]).encode() + b"\n")
        line = self._answers.readline() if select.select([self._socket], [], [], LONGEST * 3)[0] else b""
        status, cpu, largest = json.loads(line) if line else (self._death(), 0.0, 0)
        texts = [os.pread(file, 1 << 26, 0).decode(errors="surrogateescape") for file in (self._out, self._err)]
        return Outcome(words, status, *texts, cpu, largest)

    def end(self) -> None:
        """End the process, and whatever it has started."""
        self._answers.close()
        self._socket.close()
        for file in (self._out, self._err):
            os.close(file)
        if self._process:
            os.waitpid(self._process, 0)

    def _death(self) -> int | None:
        """Return the exit status of a process that has ended by itself; None of one that was killed, or is now."""
        if not select.select([self._socket], [], [], 0)[0]:
            os.killpg(self._process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        self._process = 0
        return None if code < 0 else code


def _serve(orders: socket.socket, out: int, err: int) -> NoReturn:
    """Run commands in this process, which was forked for them, until there are no more."""
    os.setsid()
    home, variables = os.getcwd(), dict(os.environ)
    try:
        for line in orders.makefile("rb"):
            words, environment, cwd = json.loads(line)
            for file in (out, err):
                os.ftruncate(file, 0)
                os.lseek(file, 0, os.SEEK_SET)
            os.environ.clear()
            os.environ.update(variables | environment)
            os.chdir(cwd or home)
            before = _cpu()
            resource.setrlimit(resource.RLIMIT_CPU, (int(before + LONGEST) + 1, resource.RLIM_INFINITY))
            status = _run(words, out, err)
            largest = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            orders.sendall(json.dumps([status, _cpu() - before, largest]).encode() + b"\n")
    finally:
        os._exit(0)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def command(arguments: Sequence[str], out: int, err: int) -> NoReturn:
    """Run ``sinkscope`` in this process, which was forked for it, with its output into two open files; then end it."""
    status = 99
    try:
        os.setsid()
        status = _run(arguments, out, err)
    finally:
        os._exit(status)


def _run(arguments: Sequence[str], out: int, err: int) -> int:
    """Run ``sinkscope`` in this process, and return its exit status; 99 where it raises what it should not."""
    status = 99
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        with warnings.catch_warnings():
            warnings.resetwarnings()
            from sinkscope.cli import main

            sys.argv = ["sinkscope", *arguments]
            try:
                main()
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return status


def faults(outcome: Outcome, *, harmless: bool = False, same: str | None = None, out: Path | None = None) -> list[str]:
    """Return what is wrong with how a command ended.

    Args:
        harmless: whether it may also end well.
        same: what it must have printed if it ended well.
        out: where it was to write; nothing may stand there unless it ended well.
    """
    found = []
    if outcome.status is None:
        return ["hang"]
    if outcome.status == 0:
        if not harmless:
            found.append("accepted")
        elif same is not None and outcome.out != same:
            found.append("other output")
        return found
    if outcome.status not in (1, 2):
        found.append(f"status {outcome.status}")
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    told = [line for line in lines if OURS.fullmatch(line)]
    if len(told) != 1:
        found.append(f"{len(told)} messages")
    if outcome.cpu > SECONDS:
        found.append(f"slow: {outcome.cpu:.1f} s")
    if outcome.largest * 1024 > MEMORY:
        found.append(f"memory: {outcome.largest >> 10} MB")
    if out is not None and os.path.lexists(out):
        found.append("leftover")
    return found


def log(line: str) -> None:
    """Print a line, and add it to the file that ``HOSTILE_LOG`` names, so that a bad case of a long trial has a name at once."""
    print(line)
    if path := os.environ.get("HOSTILE_LOG"):
        with open(path, "a") as file:
            file.write(f"{line}\n")


class Tally:
    """Counts cases and gathers the bad ones."""

    def __init__(self) -> None:
        self.cases, self.ended_well, self.bad, self.started = 0, 0, [], time.monotonic()

    def judge(self, name: str, outcome: Outcome, **how) -> None:
        """Count a case."""
        self.cases += 1
        self.ended_well += outcome.status == 0
        if wrong := faults(outcome, **how):
            last = (outcome.err.strip().splitlines() or [""])[-1]
            self.blame(f"{name}: {', '.join(wrong)}: status {outcome.status}: {last[:300]}")

    def blame(self, what: str) -> None:
        """Count a bad case, and name it at once."""
        self.bad.append(what)
        log(f"BAD {what}")

    def conclude(self, least: int) -> None:
        """Fail where a case was bad, or there were too few."""
        seconds = time.monotonic() - self.started
        log(f"{self.cases} cases, {self.ended_well} ended well, {len(self.bad)} bad, {seconds:.0f} s")
        assert not self.bad, f"{len(self.bad)} of {self.cases} cases:\n" + "\n".join(self.bad[:60])
        assert self.cases >= least, f"expected at least {least} cases, found {self.cases}"
