"""Agreement: do heads and layers share a main sink, and does a head keep its pattern from prompt to prompt?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from sinkscope.sinks.definition import CLASSES
from sinkscope.statistics.intervals import interval_of_pairs, product, quotient
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.thresholds import Threshold

TENTHS = 10
MOST_PROMPTS = 128
FEW = "few tokens take most attention (Fig. 3, 9)"
SAME = "LLaDA's patterns are consistent (§4.2)"


class Agreement(Statistic):
    """Whether the main sinks of two heads stand at one position; between prompts see `prompt_agreement`."""

    order = 3
    definitions: ClassVar = {
        "agreement.same_layer": Definition("two heads of a layer have one main sink", "probability", FEW),
        "agreement.other_layers": Definition("two heads of different layers have one", "probability", FEW),
    }
    for _name, _where in (("place", "in the same tenth of the canvas"), ("class", "on the same class of token")):
        _text = f"main sinks of one head in two prompts stand {_where}; percentile interval over prompts"
        definitions[f"agreement.prompts_{_name}"] = Definition(_text, "probability", SAME)
        _text = "that minus the same for two different heads"
        definitions[f"agreement.prompts_{_name}_over_other_heads"] = Definition(_text, "probability", SAME)

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, _values_at)


def _values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
    main = prompt.main_at(threshold)
    steps, layers, _ = main.shape
    width = max(int(main.max()) + 1, 1)
    step, layer, _ = places = np.nonzero(main >= 0)
    place = (step * layers + layer) * width + main[places]
    count = np.bincount(place, minlength=steps * layers * width).reshape(steps, layers, width)
    same, all_pairs = _pairs(count.sum(axis=-1)), _pairs(count.sum(axis=(1, 2)))
    agree, agree_all = _pairs(count).sum(axis=-1), _pairs(count.sum(axis=1)).sum(axis=-1)
    return {
        ("agreement.same_layer", ()): quotient(agree.sum(), same.sum()),
        ("agreement.other_layers", ()): quotient(agree_all.sum() - agree.sum(), all_pairs.sum() - same.sum()),
    }


def _pairs(count: np.ndarray) -> np.ndarray:
    return count.astype(np.float64) * (count - 1)


@dataclass(frozen=True, eq=False)
class Pattern:
    """Places of the main sink of each head in one prompt, as shares of the steps that have one (0 without)."""

    place: Float[np.ndarray, "layer head tenth"]
    token: Float[np.ndarray, "layer head class"]

    @classmethod
    def of(cls, prompt: PromptSummary, threshold: Threshold) -> "Pattern":
        canvas, main = prompt.canvas, prompt.main_at(threshold)
        step, layer, head = places = np.nonzero(main >= 0)
        position = main[places]
        tenth = np.minimum(position * TENTHS // np.maximum(canvas.lengths[step], 1), TENTHS - 1)
        indices = canvas.token_indices
        kinds = canvas.token_classes[indices[step, np.minimum(position, indices.shape[1] - 1)]]
        heads, shares = prompt.layers * prompt.heads, []
        for kind, many in ((tenth, TENTHS), (kinds, len(CLASSES))):
            counts = np.bincount((layer * prompt.heads + head) * many + kind, minlength=heads * many)
            counts = counts.reshape(prompt.layers, prompt.heads, many)
            shares.append((counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)).astype(np.float32))
        return cls(*shares)


def prompt_agreement(prompts: Sequence[Pattern], seed: int = 0) -> dict[str, tuple[float, float, float, int]]:
    """Return the probability that a head's main sinks in two prompts match, and the excess over other heads':
    {name: (mean over pairs of prompts, low, high, prompts that have a sink)}.
    """
    found = {}
    for name, patterns in (("place", [one.place for one in prompts]), ("class", [one.token for one in prompts])):
        own, weight, over, over_weight = head_agreement(np.array([one.reshape(-1, one.shape[-1]) for one in patterns]))
        having = sum(bool(one.any()) for one in patterns)
        for ending, one, pairs in (("", own, weight), ("_over_other_heads", over, over_weight)):
            estimate = interval_of_pairs(one * pairs, pairs, seed=seed)
            found[f"agreement.prompts_{name}{ending}"] = (*estimate, having)
    return found


def head_agreement(patterns: Float[np.ndarray, "prompt head kind"]) -> tuple[Float[np.ndarray, "prompt prompt"], ...]:
    """Return for every pair of prompts the agreement of heads with themselves, its weight; the excess, its weight."""
    prompts, _, _ = patterns.shape
    patterns = patterns.astype(np.float64)
    there = (patterns.sum(axis=2) > 0).astype(np.float64)
    flat = patterns.reshape(prompts, -1)
    same, same_weight = product(flat, flat.T), product(there, there.T)
    kinds = patterns.sum(axis=1)
    every, every_weight = product(kinds, kinds.T), np.outer(there.sum(axis=1), there.sum(axis=1))
    other_weight = every_weight - same_weight
    own = same / np.maximum(same_weight, 1)
    both = (same_weight > 0) & (other_weight > 0)
    over = np.where(both, own - (every - same) / np.maximum(other_weight, 1), 0.0)
    return own, same_weight, over, np.where(both, same_weight, 0.0)
