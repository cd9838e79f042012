"""Knows which networks are in the middle of a generation of ours, recorded or not."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_running: "weakref.WeakKeyDictionary[nn.Module, int]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def generating(network: nn.Module) -> Iterator[None]:
    """Count a generation of a network as running while the body runs; several threads may have one each."""
    with _lock:
        _running[network] = _running.get(network, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _running[network] -= 1


def is_generating(network: nn.Module) -> bool:
    """Return whether a generation of a network runs, in this thread or another."""
    with _lock:
        return _running.get(network, 0) > 0
