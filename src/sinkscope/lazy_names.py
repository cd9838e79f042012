"""Public names of a package that are imported when they are first used; its stub ``__init__.pyi`` lists each once."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def public_names(file: str) -> dict[str, str]:
    """Return the names that a stub exports, each with its module below the package, ``""`` for a subpackage.

    Args:
        file: the package's ``__init__.py``; the stub beside it holds lines such as ``from .loading import load as
            load``, which type checkers read as an export.
    """
    import ast
    from pathlib import Path

    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: node.module or "" for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions that a package with a stub calls ``__getattr__`` and ``__dir__``.

    Args:
        package: its ``__name__``.
        file: its ``__file__``.
    """

    def get(name: str) -> Any:
        names = public_names(file)
        if name == "__all__":
            return list(names)
        if name not in names:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(names)}")
        if not names[name]:
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{names[name]}"), name)

    return get, lambda: sorted(public_names(file))
