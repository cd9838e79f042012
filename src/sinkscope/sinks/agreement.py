"""Agreement: do heads and layers share a main sink, and does a head keep its pattern from prompt to prompt?"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.composition import classes_of
from sinkscope.sinks.intervals import interval_of_pairs
from sinkscope.sinks.points import Point, Values
from sinkscope.sinks.token_classes import CLASSES

if TYPE_CHECKING:
    from sinkscope.sinks.profile import Profile

TENTHS = 10
MOST_PROMPTS = 128


def agreement_values(profile: "Profile", point: Point) -> Values:
    """Probability that the main sinks of two different heads stand at one position in one step, within and across layers."""
    return heads_agreement(profile.main_at(point))


def heads_agreement(main: Int[np.ndarray, "step layer head"]) -> Values:
    """The same of main sinks, −1 where Eq. 3 does not hold."""
    steps, layers, _ = main.shape
    width = int(main.max()) + 1
    if width < 1:
        return {("agreement.same_layer", ()): float("nan"), ("agreement.other_layers", ()): float("nan")}
    step, layer, _ = places = np.nonzero(main >= 0)
    count = np.bincount((step * layers + layer) * width + main[places], minlength=steps * layers * width).reshape(steps, layers, width)
    same, all_pairs = _pairs(count.sum(axis=-1)), _pairs(count.sum(axis=(1, 2)))
    agree, agree_all = _pairs(count).sum(axis=-1), _pairs(count.sum(axis=1)).sum(axis=-1)
    return {
        ("agreement.same_layer", ()): _share(agree.sum(), same.sum()),
        ("agreement.other_layers", ()): _share(agree_all.sum() - agree.sum(), all_pairs.sum() - same.sum()),
    }


def _pairs(count: np.ndarray) -> np.ndarray:
    return count.astype(np.float64) * (count - 1)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")


@dataclass(frozen=True)
class Pattern:
    """Where the main sink of each head stands in one prompt, as shares of the steps that have one; 0 throughout without.

    Attributes:
        place: [head, tenth of the canvas]; token: [head, class], classes as in `token_classes.CLASSES`. Heads of all layers.
    """

    place: Float[np.ndarray, "head tenth"]
    token: Float[np.ndarray, "head class"]


def pattern_of(profile: "Profile", point: Point) -> Pattern:
    """The pattern of one prompt."""
    main = profile.main_at(point).reshape(profile.steps, -1)
    step, head = places = np.nonzero(main >= 0)
    position = main[places]
    tenth = np.minimum(position * TENTHS // np.maximum(profile.canvas.lengths[step], 1), TENTHS - 1)
    kinds = classes_of(profile.canvas, profile.token_ids)[
        profile.token_indices[step, np.minimum(position, profile.token_indices.shape[1] - 1)]
    ]
    return Pattern(_by_head(head, tenth, main.shape[1], TENTHS), _by_head(head, kinds, main.shape[1], len(CLASSES)))


def _by_head(head: np.ndarray, kind: np.ndarray, heads: int, kinds: int) -> np.ndarray:
    counts = np.bincount(head * kinds + kind, minlength=heads * kinds).reshape(heads, kinds)
    return (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).astype(np.float32)


@dataclass
class PromptAgreement:
    """Collects the patterns of the first 128 prompts, and compares each head with itself and with other heads.

    ``same head``: probability that the main sinks of one head, in random steps of two prompts, fall into the same
    tenth of the canvas (or on the same class of token). ``over other heads``: minus the same for two different heads,
    which is 0 when it does not matter which head it is.
    """

    places: list[np.ndarray] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)

    def add(self, pattern: Pattern) -> None:
        """One prompt's pattern."""
        if len(self.places) < MOST_PROMPTS:
            self.places.append(pattern.place)
            self.tokens.append(pattern.token)

    def result(self, seed: int = 0) -> dict[str, tuple[float, float, float, int]]:
        """{name: (mean over pairs of prompts, low, high, prompts that have a sink)}."""
        found = {}
        for name, patterns in (("place", self.places), ("class", self.tokens)):
            own, weight, over = head_agreement(np.array(patterns))
            having = sum(bool(one.any()) for one in patterns)
            found[f"agreement.prompts_{name}"] = (*interval_of_pairs(own * weight, weight, seed=seed), having)
            found[f"agreement.prompts_{name}_over_other_heads"] = (*interval_of_pairs(over * weight, weight, seed=seed), having)
        return found


def head_agreement(patterns: Float[np.ndarray, "prompt head kind"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every pair of prompts: agreement of a head with itself, heads that have a sink in both, and the excess over other heads."""
    prompts, _, _ = patterns.shape
    patterns = patterns.astype(np.float64)
    there = (patterns.sum(axis=2) > 0).astype(np.float64)
    flat = patterns.reshape(prompts, -1)
    same, same_weight = flat @ flat.T, there @ there.T
    every, every_weight = patterns.sum(axis=1) @ patterns.sum(axis=1).T, np.outer(there.sum(axis=1), there.sum(axis=1))
    other_weight = every_weight - same_weight
    own = same / np.maximum(same_weight, 1)
    both = (same_weight > 0) & (other_weight > 0)
    over = np.where(both, own - (every - same) / np.maximum(other_weight, 1), 0.0)
    return own, same_weight, over
