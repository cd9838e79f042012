"""`OwnProcess`: contexts that belong to the process which opened them, and are left as they are by one forked inside them."""

import os
from contextlib import ExitStack
from types import TracebackType

from sinkscope.errors import AttentionError

_left: list[ExitStack] = []  # held, because the clean-up of a generator runs when it is dropped


class OwnProcess(ExitStack):
    """An `ExitStack` that does nothing in a process forked inside it, where files and locks of the other one are only seen.

    Raises:
        AttentionError: a forked process leaves it without an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if os.getpid() == self.process:
            return super().__exit__(kind, error, trace)
        _left.append(self.pop_all())
        if error is None:
            expect_process(self.process)
        return None


def expect_process(process: int) -> None:
    """Raise an error where this is not the process of that number.

    Raises:
        AttentionError: so it is.
    """
    if os.getpid() != process:
        raise AttentionError(
            f"expected the process {process}, which began the recording, found {os.getpid()}, which was forked inside of it; begin a "
            "recording of its own there, in another folder"
        )
