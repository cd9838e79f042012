"""Measures layers for a cache policy while the network runs; it hides nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from sinkscope.attention import Columns, Hider, LayerCall
from sinkscope.decoding.caches.policy import CachePolicy, Moment


class Measurer(Hider):
    """Keeps what a policy asks of each layer.

    Attributes:
        found: what `CachePolicy.measure` returned for each layer of a refresh.
        watched: what `CachePolicy.follow` returned in the last layer of a step.
    """

    def __init__(self) -> None:
        self._asked: tuple[CachePolicy, Moment] | None = None
        self._watching: tuple[CachePolicy, Moment] | None = None
        self.found: list[Tensor] = []
        self.watched: Tensor | None = None

    @contextmanager
    def measuring(self, policy: CachePolicy, moment: Moment) -> Iterator[None]:
        """Measure while the body runs."""
        self._asked, self.found = (policy, moment), []
        try:
            yield
        finally:
            self._asked = None

    @contextmanager
    def watching(self, policy: CachePolicy, moment: Moment) -> Iterator[None]:
        """Watch while the body runs."""
        self._watching, self.watched = (policy, moment), None
        try:
            yield
        finally:
            self._watching = None

    def hide(self, call: LayerCall) -> None:
        if self._watching is not None:
            policy, moment = self._watching
            self.watched = policy.follow(self.watched, call, moment)

    def observes(self, call: LayerCall) -> bool:
        return self._asked is not None

    def observe(self, call: LayerCall, columns: Columns) -> None:
        if self._asked is not None:
            policy, moment = self._asked
            self.found.append(policy.measure(call, columns, moment))
