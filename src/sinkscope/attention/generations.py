"""Knows which networks are in the middle of a generation of ours, recorded or not, and in which threads."""

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sinkscope.attention.session import Session, current_session, one_at_a_time

_running: "weakref.WeakKeyDictionary[nn.Module, Counter[int]]" = weakref.WeakKeyDictionary()
"""How many generations each thread has begun and not ended."""


@contextmanager
def generating_in(network: nn.Module) -> Iterator[Session | None]:
    """Count a generation of a network as running while the body runs, and give its session; meanwhile no other thread opens one."""
    me = threading.get_ident()
    torch.clear_autocast_cache()  # within an autocast of the caller's, weights would stay as an earlier call has cast them
    with one_at_a_time:
        session = current_session(network)
        by_thread = _running.setdefault(network, Counter())
        by_thread[me] += 1
    try:
        yield session
    finally:
        with one_at_a_time:
            by_thread[me] -= 1
            if not by_thread[me]:
                del by_thread[me]


def is_generating(network: nn.Module, *, elsewhere: bool = False) -> bool:
    """Return whether a generation of a network runs, in this thread or another; ``elsewhere`` asks of others alone."""
    me = threading.get_ident()
    with one_at_a_time:
        return any(not elsewhere or thread != me for thread in _running.get(network, ()))
