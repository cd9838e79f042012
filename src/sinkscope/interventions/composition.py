"""Several rules at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import Hiding, hiding
from sinkscope.interventions.intervention import Intervention, check_count
from sinkscope.interventions.positions import HidePositions
from sinkscope.interventions.top_sinks import HideTopSinks
from sinkscope.models import Model


@dataclass(frozen=True)
class Composed:
    """Rules in force at the same time: a key is hidden where any of them hides it. Made by `compose`.

    Its effect counts what was removed once. Each rule observes what all of them do: ``local`` is without any hiding,
    ``hidden`` with all of it.
    """

    parts: tuple[Intervention, ...]

    @property
    def idle(self) -> bool:
        """Whether none of them hides anything."""
        return all(part.idle for part in self.parts)

    @property
    def waits(self) -> bool:
        """Whether any of them goes by the step before; see `Intervention.waits`."""
        return any(part.waits for part in self.parts)

    @contextmanager
    def __call__(self, model: Model | nn.Module) -> Iterator[Hiding]:
        """Hides while the body runs; see `Intervention`."""
        with hiding(model, self.parts) as running:
            yield running


def compose(*rules: Intervention | Composed) -> Composed:
    """Several rules as one; of none, one that hides nothing.

    Raises:
        CallError: something that is no rule.
    """
    wrong = [rule for rule in rules if not isinstance(rule, Intervention | Composed)]
    if wrong:
        raise CallError(f"compose: expected interventions such as HideTopSinks(1), found {wrong[0]!r}")
    return Composed(tuple(part for rule in rules for part in (rule.parts if isinstance(rule, Composed) else (rule,))))


def drop_past(count: int, *, keep_first: int = 0, hide_future_sinks: int = 0) -> Composed:
    """Long context (paper 1, §5.3): the oldest tokens are dropped, with or without the sinks in the future.

    Dropped tokens keep their places: nobody sees them, and the others are not numbered anew.

    Args:
        count: how many of the oldest tokens go, the first included.
        keep_first: how many of the very first stay all the same (an autoregressive model's sinks).
        hide_future_sinks: how many of the top sinks among the masked positions of a diffusion model go too; an
            autoregressive model has none.

    Raises:
        CallError: numbers below 0, or more first tokens kept than dropped.
    """
    for name, value in (("count", count), ("keep_first", keep_first), ("hide_future_sinks", hide_future_sinks)):
        check_count(name, value)
    if keep_first > count:
        raise CallError(f"keep_first: expected at most count, {count}, found {keep_first}")
    future = [HideTopSinks(hide_future_sinks, keys="masked")] if hide_future_sinks else []
    return compose(HidePositions(range(keep_first, count)), *future)
