"""`show_progress`: a bar on a terminal and in a notebook, elsewhere a line every half minute."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sinkscope.runs.files import printable

SECONDS = 30.0
"""From one line to the next."""


class Progress:
    """Counts finished pieces of work in a bar of tqdm."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def advance(self, pieces: int = 1, **facts: Any) -> None:
        """Count finished pieces; ``facts`` are shown behind the numbers, such as ``loss="0.71"``."""
        if facts:
            self._bar.set_postfix(facts, refresh=False)
        self._bar.update(pieces)


class _Lines:
    """Stands in for a terminal where tqdm writes: each state of the bar becomes a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr)

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def show_stages(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that takes a unit of work, how much is done and how much is expected, and shows a bar for it; the
    time left follows from the mean speed so far, as pieces differ in size.
    """
    shown: dict[str, Any] = {}
    with ExitStack() as bars:

        def report(units: str, done: int, total: int) -> None:
            if units not in shown:
                bars.close()
                shown[units] = bars.enter_context(show_progress(total, name, units, smoothing=0.0))._bar
            shown[units].total = total
            shown[units].update(done - shown[units].n)

        yield report


@contextmanager
def show_progress(
    total: int, name: str, units: str, *, done: int = 0, shown: bool = True, smoothing: float = 0.3
) -> Iterator[Progress]:
    """Show on standard error how many of ``total`` pieces (``units``) of the work ``name`` are done as the body runs,
    ``done`` of them before.
    """
    from tqdm import tqdm

    how: dict[str, Any] = {}
    if not (sys.stderr.isatty() or in_notebook()):
        form = f"{{desc}}: {{n:,}} of {{total:,}} {units}, {{elapsed}} so far, about {{remaining}} left{{postfix}}"
        how = {"file": _Lines(), "mininterval": SECONDS, "delay": SECONDS, "miniters": 1, "bar_format": form}
    how |= {"initial": done, "desc": printable(name), "unit": f" {units}", "disable": not shown}
    with tqdm(total=total, dynamic_ncols=True, smoothing=smoothing, **how) as bar:
        yield Progress(bar)


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook, which shows a bar although its standard error is no terminal."""
    marimo, ipython = sys.modules.get("marimo"), sys.modules.get("IPython")
    if marimo is not None and marimo.running_in_notebook():
        return True
    return getattr(None if ipython is None else ipython.get_ipython(), "kernel", None) is not None


def counting_bar(progress: Progress | None, unit: int) -> Any:
    """Return a tqdm class for a library that draws its own bar: it only counts pieces of ``unit`` in ``progress``."""
    from tqdm import tqdm

    class Counting(tqdm):
        received = 0

        def __init__(self, *arguments: Any, name: str = "", **settings: Any) -> None:
            super().__init__(*arguments, **settings | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            before = Counting.received // unit
            Counting.received += int(n or 0)
            if progress is not None and Counting.received // unit != before:
                progress.advance(Counting.received // unit - before)

    return Counting
