"""The base of everything that takes keys away: one verb, and the options that limit any of them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from sinkscope.errors import CallError
from sinkscope.interventions.canvas import GROUPS
from sinkscope.interventions.hiding import Hiding, Observation, RuleContext, hiding
from sinkscope.interventions.ranking import Scope
from sinkscope.models import Model

Where = str | Collection[int] | None


@dataclass(frozen=True, kw_only=True)
class Intervention(ABC):
    """Takes keys away from queries: a frozen value; called with a model, a context manager.

    ``with HideTopSinks(1)(model) as hiding:`` leaves no trace on the model, also after an exception; what came of it
    is in ``hiding.effect``. A query never loses its last visible key.

    Attributes:
        layers: numbers of the layers it is limited to, from 0; all when None.
        steps: numbers of the steps of a generation it is limited to, from 0.
        keys: the only keys it may choose among: positions of the canvas (padding left out), or ``masked``,
            ``unmasked``, ``prompt``, ``answer``.
        queries: the only queries that lose them, said in the same way.
        effect: ``mask``: −∞ before the softmax, so that the other keys share the attention; ``zero``: 0 after the
            softmax, so that it is lost, and with it the values.
    """

    layers: Collection[int] | None = None
    steps: Collection[int] | None = None
    keys: Where = None
    queries: Where = None
    effect: Literal["mask", "zero"] = "mask"

    def __post_init__(self) -> None:
        for name in ("layers", "steps", "keys", "queries"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), words=name in ("keys", "queries")))
        check_choice("effect", self.effect, ("mask", "zero"))

    @abstractmethod
    def choose(self, context: RuleContext) -> Tensor | None:
        """The keys to take away in one layer of one step.

        Returns:
            bool [batch, head, key] or [batch, head, query, key], with one head for all where they do not differ;
            None as long as the rule is not in force (nothing has been observed yet).
        """

    @property
    def most(self) -> int | None:
        """How many keys a head can lose; None where that is not known beforehand."""
        return None

    @property
    def idle(self) -> bool:
        """Whether this hides nothing whatever the model does; the model then runs untouched."""
        return self.layers == () or self.steps == () or self.keys == () or self.queries == ()

    @property
    def observing(self) -> bool:
        """Whether the columns of a step are needed in the next one."""
        return False

    @property
    def takes_own(self) -> bool:
        """Whether the network's own sink token or learned logit is taken away too."""
        return False

    @property
    def waits(self) -> bool:
        """Whether it goes by the step before, and so does nothing where there is only one step, as in a likelihood."""
        return False

    @property
    def unhidden_pass(self) -> bool:
        """Whether every step needs an extra forward call without hiding."""
        return False

    def criterion(self, seen: Observation, causal: bool) -> tuple[Tensor, Scope]:
        """Values [batch, head, key] by which the current top K is told, and which heads share them; for `Effect.hits`."""
        return (seen.last_row if causal else seen.columns), "head"

    @contextmanager
    def __call__(self, model: Model | nn.Module) -> Iterator[Hiding]:
        """Hides while the body runs.

        Raises:
            CallError: no model, or layers that it does not have.
            AttentionError: the model's attention cannot be changed.
        """
        with hiding(model, (self,)) as running:
            yield running


def check_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Refuses a word that is none of the known ones.

    Raises:
        CallError: names them.
    """
    if value not in known:
        raise CallError(f"{name}: expected {' or '.join(known)}, found {value!r}")


def check_count(name: str, value: Any) -> None:
    """Refuses what is no number of keys.

    Raises:
        CallError: not a whole number from 0.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CallError(f"{name}: expected a whole number from 0 upwards, found {value!r}")


def _numbers(name: str, given: Any, words: bool) -> Any:
    if given is None or (words and isinstance(given, str) and given in GROUPS):
        return given
    expected = "numbers from 0 upwards, such as range(4) or (0, 2)" + (f", or one of {', '.join(GROUPS)}" if words else "")
    if isinstance(given, str) or not isinstance(given, Collection):
        raise CallError(f"{name}: expected {expected}, found {given!r}")
    for number in given:
        check = isinstance(number, int) and not isinstance(number, bool) and number >= 0
        if not check:
            raise CallError(f"{name}: expected {expected}, found {number!r} among them")
    return tuple(sorted(set(given)))
