"""Taking away the sink that a network has of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.interventions.hiding import RuleContext
from sinkscope.interventions.intervention import Intervention


@dataclass(frozen=True)
class HideSinkToken(Intervention):
    """No query sees the network's own sink token, all of them where there are several, or its learned logit.

    The text keeps its positions and attends to itself alone. ``keys`` has nothing to choose among and is refused.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys is not None:
            raise CallError(f"keys: expected none, as a sink token is no key of the canvas, found {self.keys!r}")

    @property
    def takes_own(self) -> bool:
        return True

    def choose(self, context: RuleContext) -> Tensor:
        if context.call.own is None:
            raise CallError(f"expected a network with a sink token or a learned logit to hide, found none in {context.call.name}")
        return torch.zeros(1, 1, context.call.keys, dtype=torch.bool, device=context.real.device)
