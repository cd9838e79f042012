"""The attention that lies on few tokens: by depth, over the steps, and against ε (Fig. 10)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from sinkscope.sinks.definition import visible_query_mean
from sinkscope.statistics.intervals import depth_slope, mean, product, ratio
from sinkscope.statistics.movement import FEW
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds, in_layers, over_steps
from sinkscope.statistics.step import RecordedStep
from sinkscope.statistics.thresholds import EPSILONS, UNITS, Threshold

DEPTH = "deeper layers have fewer, stronger sinks (Fig. 5)"
GU_THRESHOLD = 0.3
LEAST_QUERIES = 64
"""Queries that must see a key of a causal model before its mean α counts in a rate, as Gu et al. take theirs over 64
tokens; means of a few queries are often large: the newest key has one query, its own."""


@dataclass(frozen=True, eq=False)
class Evenness:
    """Spread of the attention of each head over the keys: entropy over that of equal columns; Gini coefficient; 1 where
    any key's mean α, or the first token's, exceeds 0.3 (Gu et al., arXiv 2410.10781; of a causal key that 64 see).
    """

    entropy: Float[np.ndarray, "*step layer head"]
    gini: Float[np.ndarray, "*step layer head"]
    over_third: Float[np.ndarray, "*step layer head"]
    first_over_third: Float[np.ndarray, "*step layer head"]

    @classmethod
    def of(cls, step: RecordedStep) -> "Evenness":
        columns, total = step.columns.sums, step.columns.total
        queries = np.maximum(step.queries, 1)[:, None]
        of_any, of_first = step.columns.at_top(columns) / queries, columns[..., 0] / queries
        if step.reach is not None:
            alpha = visible_query_mean(columns, True, step.reach)
            seen = np.minimum(step.length - np.arange(step.length), step.reach[:, None])[:, None]
            of_any = np.where(seen >= LEAST_QUERIES, alpha, -1).max(axis=-1)
            of_any, of_first = np.where(of_any < 0, np.nan, of_any), alpha[..., 0]
        over, first_over = (
            np.where(np.isnan(one), one, one > GU_THRESHOLD).astype(np.float32) for one in (of_any, of_first)
        )
        count, some = columns.shape[-1], total[..., None] > 0
        share = np.divide(columns, total[..., None], out=np.full(columns.shape, 1 / count, np.float32), where=some)
        logs = np.log(np.maximum(share, np.finfo(np.float32).tiny))
        entropy = -np.einsum("lhk,lhk->lh", share, logs) / np.log(max(count, 2))
        # Gini: 2 Σ i·c₍ᵢ₎ / (n Σ c) − (n+1)/n over the sorted columns.
        ranked = product(np.sort(columns, axis=-1), np.arange(1, count + 1, dtype=np.float32))
        of_equal = np.full(total.shape, (count + 1) / 2, np.float32)
        gini = 2 * np.divide(ranked, total, out=of_equal, where=total > 0) / count - (count + 1) / count
        return cls(entropy, gini, over, first_over)


class Concentration(Statistic):
    """The number of sinks, the attention they take, and how even columns are."""

    order = 7
    definitions: ClassVar = {
        "concentration.sinks_per_head": Definition("sinks per step and head", "sinks", DEPTH),
        "concentration.share_on_sinks": Definition("attention that lies on sinks", "share", FEW),
        "concentration.layers_without": Definition("steps × layers in which no head has a sink", "share", DEPTH),
        "concentration.number_by_depth": Definition("slope of sinks, first (0) to last layer (1)", "sinks", DEPTH),
        "concentration.strength_by_depth": Definition("the same of the main sink's column", "queries", DEPTH),
        "concentration.strength": Definition("column of the main sink, where there is one", "queries", DEPTH),
        "concentration.entropy": Definition("entropy of the columns, divided by that of equal columns", "share", FEW),
        "concentration.gini": Definition("Gini coefficient of the columns", "0 to 1", FEW),
        "concentration.gu_rate": Definition(
            f"steps × heads in which a key (of causal models one that {LEAST_QUERIES} queries see) has a mean α > 0.3 "
            "(Gu et al., Sink_*)",
            "share",
            FEW,
        ),
        "concentration.gu_rate_first": Definition("the same for the first token alone (Sink_1)", "share", FEW),
        "epsilon.not_sinks": Definition(
            "columns that are no sinks at ε = 0, ½, … 10", "share", "≥ 96 % at 3 (Fig. 10)"
        ),
    }

    def keep(self, step: RecordedStep) -> Evenness:
        return Evenness.of(step)

    def values(self, prompt: PromptSummary) -> Values:
        values = evenness_values(prompt)
        longest = int(prompt.canvas.lengths.max())
        length_class = f"up to {max(64, 1 << (longest - 1).bit_length())}"  # up to 64, 128, 256 … tokens
        for unit, above in zip(UNITS, prompt.above.sum(axis=1), strict=True):
            for excess, count in zip(EPSILONS[::2].tolist(), above[::2].tolist(), strict=True):
                for positions in ("any", length_class):
                    place = (("positions", positions), ("unit", unit), ("excess", excess))
                    values["epsilon.not_sinks", place] = 1 - count / prompt.columns
        return values | at_thresholds(prompt, concentration_values)


def evenness_values(prompt: PromptSummary) -> Values:
    """Return the numbers without ε: entropy, Gini coefficient and the rates of Gu et al."""
    values: Values = {}
    found = prompt.kept(Evenness)
    names = ("entropy", "gini", "gu_rate", "gu_rate_first")
    for name, array in zip(names, (found.entropy, found.gini, found.over_third, found.first_over_third), strict=True):
        values[f"concentration.{name}", ()] = mean(array)
        values |= in_layers(f"concentration.{name}", [mean(array[:, layer]) for layer in range(prompt.layers)])
        values |= over_steps(f"concentration.{name}", prompt.steps, lambda steps, array=array: mean(array[steps]))
    return values


def concentration_values(prompt: PromptSummary, threshold: Threshold) -> Values:
    """Return the number of sinks and the attention they take, by depth and over the steps."""
    counts, shares, present = prompt.counts(threshold), prompt.shares(threshold), prompt.has_sink(threshold)
    by_layer = counts.mean(axis=(0, 2))
    largest = np.where(present, prompt.by_step.largest, 0).sum(axis=(0, 2), dtype=np.float64)
    strength = ratio(largest, present.sum(axis=(0, 2)))
    return {
        ("concentration.sinks_per_head", ()): float(by_layer.mean()),
        ("concentration.share_on_sinks", ()): mean(shares),
        ("concentration.layers_without", ()): float((~present.any(axis=2)).mean()),
        ("concentration.number_by_depth", ()): depth_slope(by_layer),
        ("concentration.strength_by_depth", ()): depth_slope(strength),
        **in_layers("concentration.sinks_per_head", by_layer),
        **in_layers("concentration.strength", strength),
        **over_steps("concentration.sinks_per_head", prompt.steps, lambda steps: mean(counts[steps])),
        **over_steps("concentration.share_on_sinks", prompt.steps, lambda steps: mean(shares[steps])),
    }
