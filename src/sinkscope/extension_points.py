"""Extension points: classes that a package finds in its own modules and in those that installed packages declare."""

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from sinkscope.errors import CallError

Kind = TypeVar("Kind")


def find_kinds(
    package: str, base: type[Kind], is_one: Callable[[type[Kind]], bool], group: str, expected: str
) -> Iterator[type[Kind]]:
    """Yield the classes that extend a base class and pass ``is_one``, of the modules of ``package`` and of the entry
    points ``group``, by which installed packages declare a class, or a module with classes (``expected``).
    """
    for module in pkgutil.iter_modules(import_module(package).__path__):
        yield from _kinds_in(import_module(f"{package}.{module.name}"), base, is_one)
    for point in entry_points(group=group):
        where = f"the entry point {point.name} of {group}{f' of the package {point.dist.name}' if point.dist else ''}"
        try:
            loaded = point.load()
        except Exception as error:  # of a module that is not ours
            reason = f"{type(error).__name__}: {error}"
            raise CallError(f"{where} cannot be loaded from {point.value}: {reason}") from error
        kinds = _kinds_in(loaded, base, is_one) if isinstance(loaded, ModuleType) else [loaded]
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, base) and is_one(kind) for kind in kinds):
            raise CallError(f"{where}: expected {expected}, found {point.value}")
        yield from kinds


def _kinds_in(module: ModuleType, base: type[Kind], is_one: Callable[[type[Kind]], bool]) -> list[type[Kind]]:
    defined = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    return [kind for kind in defined if issubclass(kind, base) and is_one(kind)]
