"""The second largest column of each head: how far the largest one is from being alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from sinkscope.statistics import Definition, PromptSummary, RecordedStep, Statistic


@dataclass(frozen=True)
class SecondColumns:
    """The second largest column of each head, in one step or in all; 0 where there is one token."""

    second: Float[np.ndarray, "*step layer head"]


class SecondColumn(Statistic):
    """How large the second largest column is, in all heads and in those with a sink."""

    definitions: ClassVar = {
        "second.column": Definition(
            "second largest column of each head", "queries", "few tokens take most attention (Fig. 3)"
        ),
        "second.beside_sink": Definition(
            "the same in heads with a sink", "queries", "few tokens take most attention (Fig. 3)"
        ),
    }

    def keep(self, step: RecordedStep) -> SecondColumns:
        sums = step.columns.sums
        return SecondColumns(
            np.sort(sums, axis=-1)[..., -2] if step.length > 1 else np.zeros(sums.shape[:-1], np.float32)
        )

    def values(self, prompt: PromptSummary):
        second = prompt.kept(SecondColumns).second  # [step, layer, head]
        values = {("second.column", ()): float(second.mean())}
        for layer in range(prompt.layers):
            values["second.column_in", (("layer", layer),)] = float(second[:, layer].mean())
        for threshold in prompt.thresholds:
            beside = second[prompt.has_sink(threshold)]
            values["second.beside_sink", threshold.place] = float(beside.mean()) if beside.size else float("nan")
        return values
