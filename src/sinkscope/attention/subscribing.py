"""`subscribed` opens the session of a transformers model; `generating_in` marks its generations."""

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sinkscope.attention.hooks import TransformersHooks
from sinkscope.attention.session import Session, current_session, one_at_a_time, watched_networks
from sinkscope.attention.subscribers import Subscriber
from sinkscope.errors import AttentionError

_generating: "weakref.WeakKeyDictionary[nn.Module, Counter[int]]" = weakref.WeakKeyDictionary()
"""How many generations of ours each thread has begun and not ended, recorded or not."""


@contextmanager
def subscribed(network: nn.Module, subscriber: Subscriber) -> Iterator[Session]:
    """Add a subscriber to the network's session, opening one if there is none and closing it with the last.

    Raises:
        AttentionError: the network cannot be watched, or another thread has a subscriber there, or generates.
    """
    failed = True
    with one_at_a_time:
        session = current_session(network)
        if session is None:
            _refuse_nested(network)
            if is_generating(network, elsewhere=True):
                raise AttentionError(
                    f"expected {type(network).__name__} between its generations, found one of it in another thread; "
                    "end that first, or load it once per thread"
                )
            session = Session(network, TransformersHooks(network))
            session.open()
        session.join(subscriber)
    try:
        session.catch_up(subscriber)
        yield session
        failed = False
    finally:
        session.leave(subscriber, failed)


def _refuse_nested(network: nn.Module) -> None:
    """Refuse a network that holds, or is inside, a watched one: both would set one configuration."""
    for other in watched_networks():
        inside = any(module is network for module in other.modules())
        if inside or any(module is other for module in network.modules()):
            raise AttentionError(
                f"{type(network).__name__} {'is a part of' if inside else 'holds'} {type(other).__name__}, which is "
                f"recorded or changed already; pass {type(other).__name__} here too, or end that first"
            )


@contextmanager
def generating_in(network: nn.Module) -> Iterator[Session | None]:
    """Count a generation of a network while the body runs, and give its session; no other thread opens one then."""
    me = threading.get_ident()
    torch.clear_autocast_cache()  # within the caller's autocast, weights would stay as an earlier call cast them
    with one_at_a_time:
        session = current_session(network)
        by_thread = _generating.setdefault(network, Counter())
        by_thread[me] += 1
    try:
        yield session
    finally:
        with one_at_a_time:
            by_thread[me] -= 1


def is_generating(network: nn.Module, *, elsewhere: bool = False) -> bool:
    """Return whether a generation of a network runs, in this thread or another; ``elsewhere`` asks of others alone."""
    me = threading.get_ident()
    with one_at_a_time:
        running = _generating.get(network, Counter()).items()
        return any(number and (not elsewhere or thread != me) for thread, number in running)
