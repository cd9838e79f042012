"""Where the queries of the answer alone attend: their main sink, how often it changes place, and where it drifts.

The column sums of all queries hold the prompt's queries too, which hardly change from step to step. Without them, the
columns are those of the answer's queries, scaled as if there were as many of these as there are tokens, so that the
same thresholds of Eq. 3 apply.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int, Shaped

from sinkscope.sinks.definition import excess_of, in_unit
from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.tracking import fill_dips
from sinkscope.statistics.averages import mean
from sinkscope.statistics.followed import FollowedSinks, StepSinks
from sinkscope.statistics.movement import DRIFT, drift_values
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.step import RecordedStep, find_candidates
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True, eq=False)
class AnswerMain:
    """What the answer's queries attend to most in each head: the largest column's position and by how much it exceeds
    the mean of the others, and the `StepSinks` of all their columns, in an array of objects.
    """

    position: Int[np.ndarray, "*step layer head"]
    queries: Float[np.ndarray, "*step layer head"]
    percent: Float[np.ndarray, "*step layer head"]
    sinks: Shaped[np.ndarray, "*step"]


class AnswerQueries(Statistic):
    """How the main sink of the answer's queries changes place; only where the sums of the prompt's queries were
    recorded.
    """

    order = 2
    definitions: ClassVar = {
        "answer_queries.steps_with_sink": Definition(
            "steps × heads with a sink for the answer's queries", "share", "none"
        ),
        "answer_queries.moves_per_head": Definition(
            "moves of the answer's main sink, per head that has one in at least two steps: the old place stops being a "
            "sink of these queries, or the new one was none",
            "moves",
            "Fig. 4 and 7",
        ),
        "answer_queries.swaps_per_head": Definition(
            "the same, but both places are sinks of these queries before and after: they exchange ranks",
            "swaps",
            "none",
        ),
        "answer_queries.changes_per_head": Definition(
            "moves and swaps of the answer's main sink together, per such head", "changes", "none"
        ),
        "answer_queries.changes_of_all": Definition("the same for the main sink of all queries", "changes", "none"),
        "answer_queries.drift": Definition(
            "least-squares slope of the position of the answer's main sink over the steps, mean over heads",
            "positions per step",
            DRIFT,
        ),
        "answer_queries.drift_median": Definition("the same, median over heads", "positions per step", DRIFT),
        "answer_queries.drift_right": Definition(
            "heads whose answer's main sink drifts to the right", "share of heads", DRIFT
        ),
    }

    def keep(self, step: RecordedStep) -> AnswerMain | None:
        prompt = step.group_sums.get("prompt")
        if prompt is None or step.causal or step.length <= step.prompt_length:
            return None
        in_prompt = np.arange(step.length) < step.prompt_length
        queries = np.maximum(step.queries - step.queries_of(in_prompt, prompt), 1).astype(np.float32)  # the answer's
        sums = (step.columns.sums - prompt) * (step.length / queries)[:, None, None]
        top = sums.argmax(axis=-1)[..., None]
        excess, percent = excess_of(sums), excess_of(in_unit(sums, "percent"))
        sinks = np.empty((), object)
        sinks[()] = StepSinks.of(find_candidates(sums, excess, percent, step.columns.candidates.thresholds), len(sums))
        return AnswerMain(top[..., 0], *(np.take_along_axis(one, top, -1)[..., 0] for one in (excess, percent)), sinks)

    def values(self, prompt: PromptSummary) -> Values:
        if AnswerMain not in prompt.kept_records:
            return {}
        found = prompt.kept(AnswerMain)
        followed = FollowedSinks(tuple(found.sinks), prompt.heads, prompt.thresholds)

        def values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
            main = fill_dips(
                np.where(getattr(found, threshold.unit) > threshold.excess, found.position, -1), prompt.tolerance
            )
            moved = MainMoves.of(
                main, lambda step, layer, head, key: followed.contain(threshold, step, layer, head, key)
            )
            of_all = MainMoves.of(prompt.main_at(threshold))
            return {
                ("answer_queries.steps_with_sink", ()): float((main >= 0).mean()),
                ("answer_queries.moves_per_head", ()): _per_head(moved, moved.moves),
                ("answer_queries.swaps_per_head", ()): _per_head(moved, moved.swaps),
                ("answer_queries.changes_per_head", ()): _per_head(moved, moved.moves + moved.swaps),
                ("answer_queries.changes_of_all", ()): _per_head(of_all, of_all.moves),
                **drift_values("answer_queries", moved),
            }

        return at_thresholds(prompt, values_at)


def _per_head(found: MainMoves, counts: Int[np.ndarray, "layer head"]) -> float:
    """Return a count's mean over the heads that have a main sink in at least two steps; NaN where none has."""
    return mean(np.where(np.isnan(found.drift), np.nan, counts))
