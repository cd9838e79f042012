"""The main sink of the answer's queries alone; their columns are scaled as if as many as tokens, for the thresholds."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int, Shaped

from sinkscope.sinks.drift import MainMoves
from sinkscope.sinks.tracking import fill_dips
from sinkscope.statistics.intervals import mean
from sinkscope.statistics.movement import DRIFT, PER, SLOPE, SPEED, drift_values
from sinkscope.statistics.prompt import PromptSummary
from sinkscope.statistics.statistic import Definition, Statistic, Values, at_thresholds
from sinkscope.statistics.step import FollowedSinks, RecordedStep, SummedColumns
from sinkscope.statistics.thresholds import Threshold


@dataclass(frozen=True, eq=False)
class AnswerMain:
    """The largest column of the answer's queries in each head, its excess, and the `Candidates` among all (objects)."""

    position: Int[np.ndarray, "*step layer head"]
    queries: Float[np.ndarray, "*step layer head"]
    percent: Float[np.ndarray, "*step layer head"]
    sinks: Shaped[np.ndarray, "*step"]


class AnswerQueries(Statistic):
    """Changes of the main sink of the answer's queries; only where sums of the prompt's queries were recorded."""

    order = 2
    definitions: ClassVar = {
        "answer_queries.steps_with_sink": Definition("steps × heads with a sink for these queries", "share", "none"),
        "answer_queries.moves_per_head": Definition(f"moves of their main sink, {PER}", "moves", "Fig. 4 and 7"),
        "answer_queries.swaps_per_head": Definition(f"swaps of their main sink, {PER}", "swaps", "none"),
        "answer_queries.changes_per_head": Definition("moves and swaps together", "changes", "none"),
        "answer_queries.changes_of_all": Definition("the same for the main sink of all queries", "changes", "none"),
        "answer_queries.drift": Definition(f"{SLOPE}, mean over heads", SPEED, DRIFT),
        "answer_queries.drift_median": Definition("the same, median over heads", SPEED, DRIFT),
        "answer_queries.drift_right": Definition("heads whose main sink drifts to the right", "share of heads", DRIFT),
    }

    def keep(self, step: RecordedStep) -> AnswerMain | None:
        prompt = step.group_sums.get("prompt")
        prompt_length = step.settings.prompt_length
        if prompt is None or step.settings.causal or step.length <= prompt_length:
            return None
        in_prompt = np.arange(step.length) < prompt_length
        queries = np.maximum(step.queries - step.queries_of(in_prompt, prompt), 1).astype(np.float32)  # the answer's
        sums = (step.columns.sums - prompt) * (step.length / queries)[:, None, None]
        columns = SummedColumns.of(sums, step.columns.candidates.thresholds)
        sinks = np.empty((), object)
        sinks[()] = columns.candidates
        return AnswerMain(columns.top, columns.at_top(columns.excess), columns.at_top(columns.percent), sinks)

    def values(self, prompt: PromptSummary) -> Values:
        if AnswerMain not in prompt.kept_records:
            return {}
        found = prompt.kept(AnswerMain)
        followed = FollowedSinks(tuple(found.sinks), prompt.layers, prompt.heads)

        def values_at(prompt: PromptSummary, threshold: Threshold) -> Values:
            there = getattr(found, threshold.unit) > threshold.excess
            main = fill_dips(np.where(there, found.position, -1), prompt.tolerance)
            moved = MainMoves.of(main, partial(followed.contain, threshold))
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
