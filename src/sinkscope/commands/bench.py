"""`bench`: the measurements of benchmarks/."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from sinkscope.commands.command import Command, Json, default_is
from sinkscope.commands.output import note, print_json
from sinkscope.errors import CallError, SinkscopeError

RUN = """
import runpy, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script beside what it imports, whatever PYTHONSAFEPATH says; an interrupt ends it without a traceback."""


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Run the measurements of benchmarks/ in a checkout, all or the named ones.

    Attributes:
        names: of scripts, such as recording_overhead.
    """

    names: Annotated[Positional[tuple[str, ...]], default_is("all")] = ()
    json: Json = False

    def run(self) -> None:
        folder = Path(__file__).resolve().parents[3] / "benchmarks"
        scripts = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
        if not scripts:
            raise SinkscopeError(
                f"expected benchmarks at {folder}, found none; run `sinkscope bench` in a checkout of the repository"
            )
        unknown = [name for name in self.names if name not in scripts]
        if unknown:
            raise CallError(f"no benchmark {unknown[0]!r}; expected one of {', '.join(scripts)}")
        rows, failed = {}, []
        for name in self.names or scripts:
            note(f"{name} …")
            command = [sys.executable, "-c", RUN, str(scripts[name]), *(["--json"] if self.json else [])]
            done = subprocess.run(command, stdout=subprocess.PIPE if self.json else None)
            if done.returncode:
                failed.append(f"{scripts[name].name} failed with status {done.returncode}")
            elif self.json:
                rows[name] = json.loads(done.stdout)
        if self.json:
            print_json(rows)
        if failed:
            raise SinkscopeError("; ".join(failed))
