"""The commands, one file each: a `Command` with its flags, whose `run` does the work and prints.

A new command is one file and one word in `COMMANDS`; ``compare-caches`` is the class `CompareCaches` in
``commands/compare_caches.py``.
"""

from importlib import import_module

from sinkscope.commands.command import Command

COMMANDS = tuple(
    "demo trace sinks tracks roles analyse figures explore map export bundle problems evaluate compare-caches table reproduce train "
    "watch-training fold convert check bench completion".split()
)
"""The names, in the order of ``sinkscope --help``."""


def find_command(name: str) -> type[Command]:
    """Return the class of a command; no other command is imported."""
    words = name.split("-")
    return getattr(import_module(f"sinkscope.commands.{'_'.join(words)}"), "".join(word.capitalize() for word in words))
