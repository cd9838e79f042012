"""The command line of these scripts: bad arguments are refused before hours of work, and an error is told in one line."""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError

LEAST = {"problems": 1, "prompts": 1, "shots": 0, "updates": 0, "seeds": 0, "minutes": 0, "until": 1, "layer": 0}
"""The least number of each argument that counts something."""
READ = ("arms", "folders", "data", "roles", "run", "folder", "add")
"""Arguments that name a file or folder to be read."""
WRITTEN = ("out", "work", "excerpt")


class Arguments(argparse.ArgumentParser):
    """A parser that also checks the values of the arguments that several scripts have."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def parse_args(self, *given: Any) -> Any:
        """Return the arguments; the first one that cannot be ends the script with a message."""
        found = super().parse_args(*given)
        for name, value in vars(found).items():
            for one in value if isinstance(value, list) else [value]:
                if one is not None and (why := _mistake(name, one)):
                    self.error(f"{name}: {why}, found {one}")
        return found


def _mistake(name: str, value: Any) -> str:
    """Return what an argument was expected to be; nothing where it can be used."""
    if name in LEAST and not (math.isfinite(value) and value >= LEAST[name]):
        return f"expected a number from {LEAST[name]} upwards"
    if name in READ and isinstance(value, Path) and not os.access(value, os.R_OK):
        return "expected a file or folder that can be read"
    if name in WRITTEN:
        if "\0" in str(value):
            return "expected a name that a file can have"
        there = next(one for one in (value, *value.absolute().parents) if one.exists())
        if not os.access(there, os.W_OK) or (there != value and not there.is_dir()):
            return "expected a place that can be written"
    return ""


def run_script(main: Callable[[], Any]) -> None:
    """Run the main function of a script; an error that has a message is told in one line."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("error: interrupted")
    except (SinkscopeError, OSError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
