"""`single_use`: context managers of which each serves one ``with`` block, and says so in our words when it is used again."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, ParamSpec, TypeVar

from sinkscope.errors import CallError

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def single_use(function: Callable[Arguments, Iterator[Value]]) -> Callable[Arguments, AbstractContextManager[Value]]:
    """Return a function that gives a context manager, as `contextlib.contextmanager` does; opened twice, it raises `CallError`."""
    make = contextmanager(function)

    @functools.wraps(function)
    def call(*given: Arguments.args, **named: Arguments.kwargs) -> AbstractContextManager[Value]:
        return _SingleUse(make(*given, **named), function.__qualname__.removesuffix(".__call__"))

    return call


class _SingleUse(AbstractContextManager, Generic[Value]):
    def __init__(self, block: AbstractContextManager[Value], name: str) -> None:
        self._block, self._name, self._opened = block, name, False

    def __enter__(self) -> Value:
        if self._opened:
            raise CallError(
                f"{self._name}: expected a new one for each with block, found one that was opened before; make it anew"
            )
        self._opened = True
        return self._block.__enter__()

    def __exit__(self, *error: object) -> bool | None:
        return self._block.__exit__(*error)  # type: ignore[arg-type]
