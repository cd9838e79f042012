"""Runs commands in forked processes, which have everything imported."""

import contextlib
import gc
import importlib
import os
import pkgutil
import re
import resource
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "matplotlib.backends.backend_agg matplotlib.backends.backend_pdf pydantic scipy.stats scipy.optimize transformers "
    "tyro transformers.models.llama.modeling_llama pyarrow.parquet xarray zarr filelock docstring_parser tokenizers"
).split()
OURS = re.compile(r"sinkscope: error: .+")


@dataclass(frozen=True)
class Outcome:
    """How a command ended: ``status`` is negative where a signal ended it."""

    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether it ended with one message of ours."""
        return self.status in (1, 2) and len(OURS.findall(self.err)) == 1


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


def run(*arguments: str | Path) -> Outcome:
    """Run ``sinkscope`` with arguments in a forked process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            command(arguments, out.fileno(), err.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = [os.pread(file.fileno(), 1 << 26, 0).decode(errors="surrogateescape") for file in (out, err)]
    return Outcome(status, *texts)


def command(arguments: Sequence[str | Path], out: int, err: int) -> NoReturn:
    """Run ``sinkscope`` in this process, which was forked for it, with its output into two open files; then end it."""
    status = 99
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # a hang is killed
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        from sinkscope.cli import main

        sys.argv = ["sinkscope", *map(str, arguments)]
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
