"""Public names of a package that are imported when they are first used; its stub ``__init__.pyi`` lists each once."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def public_names(file: str) -> dict[str, str]:
    """Return the names that the stub beside an ``__init__.py`` exports, each with its module below the package, ``""``
    for a subpackage. Type checkers read ``from .loading import load as load`` as an export.
    """
    import ast
    from pathlib import Path

    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: node.module or "" for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package with a stub, given its ``__name__`` and ``__file__``."""

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
