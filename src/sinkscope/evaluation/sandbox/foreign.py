"""What stands, outside a program's process, for a value that is not plain data. Standard library only."""

from collections.abc import Callable, Iterator
from typing import Any

Ask = Callable[[dict[str, Any]], Any]
"""Sends a request about a value that stayed in the program's process; returns what it gave, or raises."""


class Foreign:
    """A stand-in for a value that is not plain data: equal to nothing else, and not None. Iterating over it asks the program.

    Args:
        number: the program's process knows it by.
        kind: the name of its type.
        truth: what ``bool`` says of it.
        ask: sends requests; None where it cannot be iterated over.
    """

    def __init__(self, number: int, kind: str, truth: bool = True, ask: Ask | None = None) -> None:
        self.number, self.kind, self.truth, self.ask = number, kind, truth, ask

    def __repr__(self) -> str:
        return f"a {self.kind}, which is not plain data and cannot be compared outside the program"

    def __bool__(self) -> bool:
        return self.truth

    def __contains__(self, item: object) -> bool:
        return any(one is item or one == item for one in self)

    def __iter__(self) -> Iterator[Any]:
        if self.ask is None:
            raise TypeError(f"'{self.kind}' object is not iterable")
        return self.ask({"iter": self.number})


class ForeignIterator(Foreign):
    """A stand-in for an iterator, which gives its items one by one."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Return the next item; a generator is sent a value."""
        assert self.ask is not None
        return self.ask({"next": self.number, "sent": value})

    def close(self) -> None:
        """End a generator."""
        assert self.ask is not None
        self.ask({"close": self.number})


def stand_in(reply: dict[str, Any], known: dict[int, Foreign], ask: Ask | None) -> Foreign:
    """Return what stands for the value of a reply, the same object for the same value."""
    number = found if isinstance(found := reply.get("foreign"), int) else -1
    iterator, iterates = (reply.get(name) is True for name in ("iterator", "iterates"))
    made = ForeignIterator if iterator and ask else Foreign
    return known.setdefault(
        number, made(number, str(reply.get("kind"))[:80], reply.get("truth") is not False, ask if iterates else None)
    )
