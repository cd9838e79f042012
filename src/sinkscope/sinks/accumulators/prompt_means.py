"""One number a prompt: the unit of evidence, because the steps of a prompt are anything but independent."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sinkscope.sinks.accumulators.accumulator import Accumulator, Arrays, SeenStep, ratio
from sinkscope.sinks.intervals import LEAST_PROMPTS, LEVEL

NAMES = (
    "sinks_per_head",
    "share_of_tokens_that_are_sinks",
    "share_of_attention_on_sinks",
    "share_of_heads_with_a_sink",
    "main_sink_column_sum",
    "entropy",
    "gini",
    "moves_per_step",
    "drift_per_step",
    "split_between_query_groups",
    "split_between_masked_and_prompt",
    "split_between_masked_and_written",
    "value_norm_of_sinks_over_others",
)


class PromptMeans(Accumulator):
    """Count, sum and sum of squares over prompts, of every number in `NAMES`."""

    name = "prompts"

    @staticmethod
    def empty(layers: int, heads: int) -> Arrays:
        return {
            "prompts": np.zeros(1, np.int64),
            "count": np.zeros(len(NAMES), np.int64),
            "sum": np.zeros(len(NAMES)),
            "square": np.zeros(len(NAMES)),
        }

    def update(self, step: SeenStep) -> None:
        """Nothing: a prompt counts when it is over."""

    def add(self, numbers: dict[str, float]) -> None:
        """Takes in one prompt; numbers that it does not have are NaN."""
        values = np.array([numbers[name] for name in NAMES])
        known = np.isfinite(values)
        self.arrays["prompts"] += 1
        self.arrays["count"] += known
        self.arrays["sum"] += np.where(known, values, 0)
        self.arrays["square"] += np.where(known, values**2, 0)

    def result(self) -> dict[str, Any]:
        """Mean and 95 % interval over prompts of every number."""
        count = self.arrays["count"]
        mean, low, high = intervals_of_sums(count, self.arrays["sum"], self.arrays["square"])
        return {
            name: {
                "mean": None if np.isnan(mean[at]) else float(mean[at]),
                "interval": None if np.isnan(low[at]) else [float(low[at]), float(high[at])],
                "prompts": int(count[at]),
            }
            for at, name in enumerate(NAMES)
        }


def intervals_of_sums(
    count: Int[np.ndarray, "*statistic"], total: Float[np.ndarray, "*statistic"], square: Float[np.ndarray, "*statistic"]
) -> tuple[Float[np.ndarray, "*statistic"], Float[np.ndarray, "*statistic"], Float[np.ndarray, "*statistic"]]:
    """Mean, low and high from the spread between prompts (Student's t; NaN below five prompts): single prompts are not kept."""
    from scipy.special import stdtrit

    mean = ratio(total, count)
    variance = ratio(square - count * np.nan_to_num(mean) ** 2, count - 1)
    half = stdtrit(np.maximum(count - 1, 1), (1 + LEVEL) / 2) * np.sqrt(np.maximum(variance, 0) / np.maximum(count, 1))
    half = np.where(count < LEAST_PROMPTS, np.nan, half)
    return mean, mean - half, mean + half
