"""Subscribers of a model's attention, which watch, hide or prepend.

A subscriber sees the events of a generation in this order: ``begin_generation``, then for each step ``begin_step``,
one ``hide``, ``prepend`` and ``watch`` per layer, ``end_step``; then ``end_generation``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sinkscope.attention.records import Columns, GenerationStart, Hidden, LayerCall, Prefix, StepContext, StepResult


class Subscriber(ABC):  # noqa: B024 - the verbs are on the three kinds below
    """Events every kind of subscriber may care about."""

    def begin_generation(self, start: GenerationStart) -> None:  # noqa: B027
        """A generation begins."""

    def begin_step(self, context: StepContext) -> None:  # noqa: B027
        """A forward call is about to run."""

    def end_step(self, result: StepResult | None) -> None:  # noqa: B027
        """The step is over; None where nobody published its result (a foreign ``generate``)."""

    def end_generation(self, failed: bool) -> None:  # noqa: B027
        """The generation is over, or was given up."""


class Watcher(Subscriber):
    """Sees the columns of every layer."""

    groups: tuple[str, ...] = ("all",)

    @abstractmethod
    def watch(self, call: LayerCall, columns: Columns) -> None:
        """One layer has run. All subscribers get the same columns, so none may change them."""


class Hider(Subscriber):
    """Takes keys away, before the softmax unless `Hidden` says otherwise."""

    @abstractmethod
    def hide(self, call: LayerCall) -> Tensor | Sequence[Hidden] | None:
        """Bool [1 or batch, 1 or head, key], True where a key is taken away; several `Hidden`; or None."""

    @property
    def waits(self) -> bool:
        """Whether it decides by the step before, which a likelihood does not have."""
        return False

    def observes(self, call: LayerCall) -> bool:
        """Whether the columns of this layer are needed even if nothing is hidden in it."""
        return False

    def observe(self, call: LayerCall, columns: Columns) -> None:
        """One layer has run, with something hidden in it or with columns that somebody needs."""

    def describe(self, prompt: int) -> dict[str, Any]:
        """Plain values for the manifest of a trace: the rule, and its effect on this prompt so far."""
        return {"rule": type(self).__name__}


class Prepender(Subscriber):
    """Puts constant keys in front; at most one per model."""

    @abstractmethod
    def prepend(self, call: LayerCall) -> Prefix | None:
        """The constant keys of this layer."""
