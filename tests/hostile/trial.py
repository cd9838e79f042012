"""Runs one command in a forked process, and judges how it ended.

A case is good if it ends with status 1 or 2 and one message in our own words, in under two seconds of processor time, and leaves nothing
that looks whole. A case that may do no harm is also good with status 0.
"""

import contextlib
import gc
import importlib
import os
import pkgutil
import re
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

SECONDS, LONGEST = 2.0, 40.0
"""Of processor time that a refusal may take; by the clock, after which a case counts as a hang."""
MEMORY = 6 << 30
LIBRARIES = (
    "matplotlib.backends.backend_agg matplotlib.backends.backend_pdf pydantic scipy.stats scipy.optimize transformers tyro "
    "transformers.models.llama.modeling_llama pyarrow.parquet xarray zarr filelock docstring_parser tokenizers"
).split()
"""What commands import when they need it."""
FOREIGN = re.compile(
    r"unexpected|Traceback|╭|Warning:|\b[Ee]rrno\b|pydantic|validation error|safetensors_rust|SafetensorError|numpy\.|torch\.\w+\(|"
    r"KeyError|TypeError|ValueError|AttributeError|IndexError|RuntimeError|StrictDataclass|HFValidation|JSONDecode|Expecting|codec can't"
)
OURS = re.compile(r"sinkscope: error: .+")


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


def run(*arguments: str, environment: dict[str, str] | None = None, cwd: Path | None = None, largest_file: int | None = None) -> Outcome:
    """Run ``sinkscope`` with arguments in a forked process.

    Args:
        environment: variables to add.
        cwd: the current folder there.
        largest_file: bytes that a file may have: more of them are refused as a full disk refuses them.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
            command(arguments, out.fileno(), err.fileno(), environment, cwd)
        status, used = _wait(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="surrogateescape"))
    return Outcome(tuple(map(str, arguments)), status, texts[0], texts[1], used.ru_utime + used.ru_stime, used.ru_maxrss)


def command(arguments: Sequence[str], out: int, err: int, environment: dict[str, str] | None = None, cwd: Path | None = None) -> NoReturn:
    """Run ``sinkscope`` in this process, which was forked for it, with its output into two open files; then end it."""
    status = 99
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        resource.setrlimit(resource.RLIMIT_CPU, (int(LONGEST), int(LONGEST)))
        os.environ.update(environment or {})
        if cwd is not None:
            os.chdir(cwd)
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
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _wait(child: int):
    handle = os.pidfd_open(child)
    try:
        if not select.select([handle], [], [], LONGEST * 3)[0]:
            os.killpg(child, signal.SIGKILL)
    finally:
        os.close(handle)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return (None if code < 0 else code), used


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
    if outcome.status == 99 or FOREIGN.search(outcome.err) or FOREIGN.search(outcome.out if outcome.status else ""):
        found.append("unexpected")
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
