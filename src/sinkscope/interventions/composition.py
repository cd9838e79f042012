"""Several rules at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import Hiding, hiding
from sinkscope.interventions.intervention import Intervention
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
