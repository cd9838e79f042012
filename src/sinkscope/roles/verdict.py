"""The verdict on a sink: what it does, by rules that were written down before anything was measured.

idle        What it adds changes nothing: without its contribution (0 behind the softmax) the predictions stay as they are.
            Attention is parked on it.
broadcast   What it adds matters, and all queries get the same amount of it.
carrier     What it adds matters, and some queries get it more than others.
undecided   Anything else: no lasting sink, too little difference, or a head in which nothing of its size would matter.

Whether an idle sink can be taken away is another question. Its attention has to go somewhere: to another idle key (a
substitute), which changes nothing, or to the text, which may. So beside the role stands how many keys must be hidden
before the predictions change.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal["idle", "broadcast", "carrier", "undecided"]
ROLES: tuple[Role, ...] = ("idle", "broadcast", "carrier", "undecided")


@dataclass(frozen=True)
class Rules:
    """The numbers in the rules.

    Attributes:
        changed: mean KL divergence from which predictions count as changed, in nats a prediction.
        small: output norm of an idle key, over the median of its canvas, where nothing else tells it from others.
        even: evenness from which all queries get the same.
        lasting: share of canvases in which a head has a sink by Eq. 3.
        excess: ε of Eq. 3, in queries' worth.
    """

    changed: float = 0.005
    small: float = 0.5
    even: float = 0.8
    lasting: float = 0.9
    excess: float = 3.0


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its 95 % interval; None where there is none."""

    mean: float | None
    low: float | None
    high: float | None


def decide(lasting: float, zeroed: Estimate, matched: Estimate, norm_ratio: Estimate, evenness: Estimate, rules: Rules) -> Role:
    """Return the role of a head's sink.

    Args:
        lasting: share of the judged canvases in which the head has a sink.
        zeroed: KL divergence without what the sink adds.
        matched: the same without what other keys add that hold as much of the readers' attention.
        norm_ratio: output norm of the sink over the median of its canvas.
        evenness: see `Sight`.
    """
    if lasting < rules.lasting or zeroed.low is None or zeroed.high is None:
        return "undecided"
    if zeroed.high < rules.changed:
        others_matter = matched.low is not None and matched.low > zeroed.high
        small = norm_ratio.high is not None and norm_ratio.high < rules.small
        return "idle" if small or others_matter else "undecided"
    if zeroed.low > rules.changed:
        if evenness.low is not None and evenness.low > rules.even:
            return "broadcast"
        if evenness.high is not None and evenness.high < rules.even:
            return "carrier"
    return "undecided"
