"""The share of the work that a process does, as torchrun numbers its processes."""

import os
from dataclasses import dataclass

from sinkscope.errors import CallError


@dataclass(frozen=True)
class Share:
    """Every ``count``-th piece of the work from number ``index`` on."""

    index: int = 0
    count: int = 1


ALL = Share()


def share_of_process() -> Share:
    """Return the share that torchrun gives this process in ``RANK`` and ``WORLD_SIZE``; all of the work without it."""
    return Share(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def expect_one_process(what: str) -> None:
    """Raise CallError under torchrun for work that is not divided: its other processes would find the folder locked."""
    if (count := share_of_process().count) > 1:
        raise CallError(f"{what} runs in one process, found {count} of torchrun; leave torchrun out")
