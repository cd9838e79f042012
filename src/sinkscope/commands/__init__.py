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
    "demo trace sinks tracks roles lens analyse figures explore map export bundle problems evaluate likelihood "
    "compare-caches table reproduce train watch-training fold convert check completion".split()
)
"""The names, in the order of ``sinkscope --help``."""


def find_command(name: str) -> "type[Command]":
    """Return the class of a command; no other command is imported."""
    module = import_module(f"sinkscope.commands.{name.replace('-', '_')}")
    return getattr(module, name.title().replace("-", ""))


def summary(name: str) -> str:
    """Return the first line of the docstring of a command's class, without importing it."""
    source = (Path(__file__).parent / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    found = re.search(rf'^class {name.title().replace("-", "")}\(.*\n +"""(.*?)(?:"""|\n)', source, re.MULTILINE)
    assert found is not None, f"{name}: no class with a docstring"
    return found[1]
