"""Panics of the tokenizers library: they are no `Exception` of Python, and the library itself tells them on standard error."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PANIC = "PanicException"
"""Name of the class; the library does not export it."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a panic of the body as a ValueError, without what the library prints of it; what else it prints follows at the end.

    Raises:
        ValueError: a panic.
    """
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # standard error is closed
        kept = None
    with tempfile.TemporaryFile() as told:
        if kept is not None:
            os.dup2(told.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            told.truncate(0)
            raise ValueError("the tokenizers library cannot use it") from error
        finally:
            if kept is not None:
                if sys.stderr is not None:
                    with contextlib.suppress(OSError, ValueError):
                        sys.stderr.flush()
                os.dup2(kept, 2)
                os.close(kept)
                told.seek(0)
                with contextlib.suppress(OSError):
                    os.write(2, told.read())
