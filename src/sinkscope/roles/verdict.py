"""The verdict on a sink by rules fixed before a trained model was measured, but for two: the comparison with the
control prompt by prompt, and the share of the attention of the queries that predict.

The first word says whether the sink can go: **dispensable**, **needed** or **open**. The second says what it adds:

idle        Without its contribution (0 behind the softmax) the predictions stay as they are: attention is parked on it.
broadcast   Its contribution matters, and all queries that predict get the same amount of it.
carrier     Its contribution matters, and some queries that predict get it more than others.
undecided   Anything else, such as too little difference, or a sink at which queries that predict hardly look.

An idle sink may be needed: its attention has to go somewhere, to a substitute or to the text.
"""

from dataclasses import dataclass
from typing import Literal

from sinkscope.sinks.definition import check_excess
from sinkscope.sinks.finding import EXCESS

Need = Literal["dispensable", "needed", "open"]
"""Whether predictions stay as they are when a sink is hidden in its head alone, change, or the interval holds both."""
Role = Literal["idle", "broadcast", "carrier", "undecided"]
NEEDS: tuple[Need, ...] = ("dispensable", "needed", "open")
ROLES: tuple[Role, ...] = ("idle", "broadcast", "carrier", "undecided")


@dataclass(frozen=True)
class Rules:
    """The numbers in the rules.

    Attributes:
        changed: mean KL divergence from which predictions count as changed, in nats a prediction.
        small: output norm of an idle key, over the median of its canvas, where nothing else tells it from others.
        even: evenness from which all queries that predict get the same.
        lasting: share of canvases in which a head has a sink by Eq. 3, of ``excess`` ε in queries' worth.
        faint: share of the attention of the queries that predict below which evenness and control do not decide.
    """

    changed: float = 0.005
    small: float = 0.5
    even: float = 0.8
    lasting: float = 0.9
    excess: float = EXCESS
    faint: float = 0.01

    def __post_init__(self) -> None:
        check_excess(float(self.excess), "queries")


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its 95 % interval; None where there is none."""

    mean: float | None
    low: float | None
    high: float | None


def decide(
    lasting: float,
    zeroed: Estimate,
    matched: Estimate,
    matched_over: Estimate,
    norm_ratio: Estimate,
    evenness: Estimate,
    taken: Estimate,
    rules: Rules,
) -> tuple[Role, str]:
    """Return the role of a head's sink, and the reason, by KL divergences: ``zeroed`` without what the sink adds,
    ``matched`` without what other keys of as much attention do, ``matched_over`` the difference prompt by prompt;
    ``norm_ratio``: its output norm over the median; ``taken``: its share of the attention of queries that predict.
    """
    faint = taken.high is not None and taken.high < rules.faint
    under = f"give it under {100 * rules.faint:.3g} % of their attention"
    if lasting < rules.lasting:
        return "undecided", "no lasting sink on the prompts that judge"
    if zeroed.low is None or zeroed.high is None:
        return "undecided", "too few prompts with a sink for an interval"
    if zeroed.high < rules.changed:
        if norm_ratio.high is not None and norm_ratio.high < rules.small:
            return "idle", "adds little: a small output norm"
        if (matched.mean or 0.0) > rules.changed and (matched_over.low or 0.0) > 0:
            return "idle", "adds nothing that matters; other keys with as much attention do"
        if faint:
            return "undecided", f"what it adds changes nothing, but the queries that predict {under}"
        return "undecided", "what it adds changes nothing; that other keys with as much attention matter is not shown"
    if zeroed.low <= rules.changed:
        return "undecided", "the interval of what it adds holds both"
    if faint:
        through = f"what it adds matters through other queries: those that predict {under}"
        return "undecided", f"{through}, so that evenness and control say nothing"
    if evenness.low is not None and evenness.low > rules.even:
        return "broadcast", "what it adds matters, to all queries that predict alike"
    if evenness.high is not None and evenness.high < rules.even:
        return "carrier", "what it adds matters, to some queries that predict more than to others"
    return "undecided", "what it adds matters, but the interval of its evenness holds both"
