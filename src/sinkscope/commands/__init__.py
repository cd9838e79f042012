"""The commands, one file each: a class of flags with the verb `run`, which calls what it needs and prints.

A new command is one file and one word in `COMMANDS`: ``sinks`` is the class `Sinks` in ``commands/sinks.py``.
"""

from importlib import import_module

from sinkscope.commands.command import Command

COMMANDS = tuple(
    "demo trace sinks tracks roles analyse figures map export problems evaluate table reproduce train fold convert check bench".split()
)
"""In the order of ``sinkscope --help``."""


def find_command(name: str) -> type[Command]:
    """Return the class of a command; only its own module is imported."""
    return getattr(import_module(f"sinkscope.commands.{name}"), name.capitalize())
