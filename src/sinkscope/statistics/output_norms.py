"""Contributions behind the output projection (Kobayashi et al., arXiv 2004.10102): does what sinks have reach the residual stream?

A value norm ‖v_j‖ is taken in front of the output projection, which may shrink some directions and stretch others. The output norm
‖W_O^h v_j‖ is the length of what key j adds to a query of head h that gives it all its attention. To all queries together it adds
Σ_q ‖a_qj·W_O^h v_j‖ = c_j·‖W_O^h v_j‖, with c_j its column sum.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from sinkscope.statistics.averages import mean, ratio
from sinkscope.statistics.norms import NOOP, contributed, over_attention, share_above, tallied, without_nan
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.step import OUTPUT_NORMS, RecordedStep
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True, eq=False)
class StepOutputNorms:
    """Output norms of one step, or of all.

    Attributes:
        of_sinks, of_all: number and sum, over heads and positions.
        above: share of the other tokens whose norm is above that of the head's largest column.
        on_sinks: share of Σ_j c_j·‖W_O v_j‖ that comes from sinks.
        given: Σ_j c_j·‖W_O v_j‖.
    """

    of_sinks: Float[np.ndarray, "*step threshold moment layer"]
    of_all: Float[np.ndarray, "*step moment layer"]
    above: Float[np.ndarray, "*step layer head"]
    on_sinks: Float[np.ndarray, "*step threshold layer head"]
    given: Float[np.ndarray, "*step layer head"]

    @classmethod
    def of(cls, step: RecordedStep) -> "StepOutputNorms":
        """Return the output norms of one step."""
        norms, sinks = step.norms[OUTPUT_NORMS], step.columns.candidates
        known, there = without_nan(norms), ~np.isnan(norms)
        at = known[sinks.layer, sinks.head, sinks.key].astype(np.float64)
        on_sinks, given = contributed(step, step.columns.sums * known)
        return cls(
            tallied(step, at, there[sinks.layer, sinks.head, sinks.key])[:, :2],
            np.stack(
                [np.count_nonzero(there, axis=(1, 2)).astype(np.float64), known.sum(axis=(1, 2), dtype=np.float64)]
            ),
            share_above(norms, 1, step.columns.top),
            on_sinks,
            given,
        )


class OutputNorms(Statistic):
    """Output norms of sinks beside those of other tokens, and what sinks add behind the output projection."""

    order = 9
    definitions: ClassVar = {
        "norms.output_norm_of_sinks": Definition("mean output norm ‖W_O v‖ of sinks", "norm", NOOP),
        "norms.output_norm_of_others": Definition("mean output norm of all other tokens", "norm", NOOP),
        "norms.output_norm_auc": Definition(
            "other tokens of the canvas whose output norm is above the largest sink's; ½ is no difference",
            "share",
            NOOP,
        ),
        "norms.output_contribution": Definition(
            "part of Σ_j c_j·‖W_O v_j‖ that comes from sinks, in heads with one", "share", NOOP
        ),
        "norms.output_contribution_over_attention": Definition(
            "the same behind the output projection, with the head's mean output norm",
            "ratio",
            NOOP,
        ),
    }

    def keep(self, step: RecordedStep) -> StepOutputNorms | None:
        return StepOutputNorms.of(step) if OUTPUT_NORMS in step.norms else None

    def values(self, prompt: PromptSummary) -> Values:
        return at_thresholds(prompt, _values_at) if StepOutputNorms in prompt.kept_records else {}


def _values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
    found, present, number = prompt.kept(StepOutputNorms), prompt.has_sink(threshold), prompt.number(threshold)
    of_sinks = found.of_sinks[:, number].sum(axis=0)
    of_others = found.of_all.sum(axis=0) - of_sinks
    means = [ratio(total, count) for count, total in (of_sinks, of_others)]
    both = (of_sinks[0] >= 1) & (of_others[0] >= 1)
    values: Values = {}
    for layer in range(prompt.layers):
        at = (("layer", layer),)
        for name, one in zip(("sinks", "others"), means, strict=True):
            values[f"norms.output_norm_of_{name}_in", at] = float(one[layer]) if both[layer] else float("nan")
        values["norms.output_norm_auc_in", at] = mean(found.above[:, layer], present[:, layer])
    values["norms.output_norm_auc", ()] = mean(found.above, present)
    values["norms.output_contribution", ()] = mean(found.on_sinks[:, number], present)
    values["norms.output_contribution_over_attention", ()] = over_attention(
        found.on_sinks[:, number], prompt.shares(threshold), found.given, present
    )
    return values
