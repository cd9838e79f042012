"""The commands, one file each: a `Command` with its flags, whose `run` does the work and prints.

A new command is one file and one word in `COMMANDS`; ``compare-caches`` is the class `CompareCaches` in
``commands/compare_caches.py``.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkscope.commands.command import Command

COMMANDS = tuple(
    "demo trace sinks tracks roles analyse figures explore map export bundle problems evaluate likelihood compare-caches table "
    "reproduce train watch-training fold convert check completion".split()
)
"""The names, in the order of ``sinkscope --help``."""


def find_command(name: str) -> "type[Command]":
    """Return the class of a command; no other command is imported."""
    module, kind = _names(name)
    return getattr(import_module(f"sinkscope.commands.{module}"), kind)


def summary(name: str) -> str:
    """Return the first line of the docstring of a command's class, without importing it."""
    module, kind = _names(name)
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^class {kind}\(.*\n +"""(.*?)(?:"""|\n)', source, re.MULTILINE)
    assert found is not None, f"{module}.py defines no {kind} with a docstring"
    return found[1]


def _names(name: str) -> tuple[str, str]:
    """Return the module and the class of a command."""
    words = name.split("-")
    return "_".join(words), "".join(word.capitalize() for word in words)
