"""Knows which networks are in the middle of a generation of ours, recorded or not, and in which threads."""

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from sinkscope.attention.session import Session, current_session, one_at_a_time

_running: "weakref.WeakKeyDictionary[nn.Module, Counter[int]]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def _generating(network: nn.Module) -> Iterator[None]:
    """Count a generation of a network as running while the body runs; several threads may have one each."""
    me = threading.get_ident()
    with _lock:
        _running.setdefault(network, Counter())[me] += 1
    try:
        yield
    finally:
        with _lock:
            _running[network][me] -= 1
            if not _running[network][me]:
                del _running[network][me]


@contextmanager
def generating_in(network: nn.Module) -> Iterator[Session | None]:
    """Count a generation of a network as running while the body runs, and give its session; meanwhile no other thread opens one."""
    with ExitStack() as running:
        with one_at_a_time:
            session = current_session(network)
            running.enter_context(_generating(network))
        yield session


def is_generating(network: nn.Module, *, elsewhere: bool = False) -> bool:
    """Return whether a generation of a network runs, in this thread or another; ``elsewhere`` asks of others alone."""
    me = threading.get_ident()
    with _lock:
        return any(not elsewhere or thread != me for thread in _running.get(network, ()))
