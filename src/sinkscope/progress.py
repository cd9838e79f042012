"""`show_progress` shows how far long work has come: as a bar on a terminal and in a notebook, elsewhere as a line every half minute."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sinkscope.documents import printable

SECONDS = 30.0
"""From one line to the next."""


class Progress:
    """How many pieces of some work are done.

    Args:
        total: number of pieces.
        name: what is being worked on.
        units: what the pieces are called: ``steps``.
        done: pieces that were done before.
    """

    def __init__(self, total: int, name: str, units: str, done: int = 0) -> None:
        self.total, self.name, self.units, self.done = total, printable(name), units, done
        self._began, self._before = time.monotonic(), done
        self._facts: dict[str, Any] = {}
        self._bar: Any = None

    def advance(self, pieces: int = 1, **facts: Any) -> None:
        """Count finished pieces; ``facts`` are shown behind the numbers, such as ``loss="0.71"``."""
        self.done += pieces
        self._facts = facts or self._facts
        if self._bar is not None:
            if facts:
                self._bar.set_postfix(facts, refresh=False)
            self._bar.update(pieces)

    def line(self) -> str:
        """Return one line: what is done, for how long it has been running, and how long the rest will take at this speed."""
        seconds, now = time.monotonic() - self._began, self.done - self._before
        words = [f"{self.name}: {self.done:,} of {self.total:,} {self.units}", f"{_clock(seconds)} so far"]
        if now and self.done < self.total:
            words.append(f"about {_clock(seconds / now * (self.total - self.done))} left")
        return ", ".join([*words, *(f"{fact} {value}" for fact, value in self._facts.items())])

    @contextmanager
    def as_bar(self) -> Iterator[None]:
        """Show a bar while the body runs."""
        from tqdm import tqdm

        with tqdm(
            total=self.total, initial=self.done, desc=self.name, unit=f" {self.units}", disable=False
        ) as self._bar:
            yield

    @contextmanager
    def as_lines(self) -> Iterator[None]:
        """Print a line every `SECONDS` while the body runs, however long one piece takes; a last one at the end if there was any."""
        over, printed = threading.Event(), False

        def speak() -> None:
            nonlocal printed
            while not over.wait(SECONDS):
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    print(self.line(), file=sys.stderr, flush=True)
                    printed = True

        speaker = threading.Thread(target=speak, name="progress", daemon=True)
        speaker.start()
        try:
            yield
        finally:
            over.set()
            speaker.join()
        if printed:
            print(self.line(), file=sys.stderr, flush=True)


@contextmanager
def show_progress(total: int, name: str, units: str, *, done: int = 0, shown: bool = True) -> Iterator[Progress]:
    """Show on standard error how far some work has come while the body runs.

    Args:
        total: number of pieces.
        name: what is being worked on.
        units: what the pieces are called: ``steps``.
        done: pieces that were done before.
        shown: False counts and shows nothing.
    """
    counted = Progress(total, name, units, done)
    if not shown:
        yield counted
        return
    with counted.as_bar() if sys.stderr.isatty() or in_notebook() else counted.as_lines():
        yield counted


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook, which shows a bar although its standard error is no terminal."""
    marimo, ipython = sys.modules.get("marimo"), sys.modules.get("IPython")
    if marimo is not None and marimo.running_in_notebook():
        return True
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, or as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def counting_bar(progress: Progress | None, unit: int) -> Any:
    """Return a tqdm class for a library that draws its own bar: it draws nothing and counts pieces of ``unit`` in ``progress``."""
    from tqdm import tqdm

    class Counting(tqdm):
        received = 0

        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(
                *arguments, **{one: value for one, value in settings.items() if one != "name"} | {"disable": True}
            )

        def update(self, n: float | None = 1) -> None:
            before = Counting.received // unit
            Counting.received += int(n or 0)
            if progress is not None and Counting.received // unit != before:
                progress.advance(Counting.received // unit - before)

    return Counting
