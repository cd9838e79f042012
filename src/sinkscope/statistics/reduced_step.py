"""A step of one prompt whose columns were reduced where they are, by `recorder.reduced_statistics`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.statistics.concentration import Concentration, Evenness
from sinkscope.statistics.groups import Groups, GroupSinks
from sinkscope.statistics.movement import AnswerMain, AnswerQueries
from sinkscope.statistics.norms import Norms, StepNorms
from sinkscope.statistics.prompt import CountedStep, StepSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.statistic import Statistic, all_statistics
from sinkscope.statistics.step import LINEAR_BINS, Candidates
from sinkscope.statistics.thresholds import Threshold

REDUCED = {kind.keep for kind in (Statistic, AnswerQueries, Concentration, Groups, Norms)}
OF_LAYERS = ("of_all", "of_sinks")
"""Fields without an axis of heads."""


def can_be_reduced() -> bool:
    """Return whether no statistic asks for the columns of a step but those whose records are reduced."""
    return all(type(one).keep in REDUCED for one in all_statistics())


def counted_step(
    arrays: Mapping[str, np.ndarray], settings: PromptSettings, thresholds: Sequence[Threshold]
) -> CountedStep:
    """Return a step of reduced arrays, without their axis of the batch."""
    length = len(arrays["tokens"])

    def parts(name: str) -> dict[str, np.ndarray]:
        start = f"{name}."
        return {one.removeprefix(start): array for one, array in arrays.items() if one.startswith(start)}

    def record(kind: Any, **more: Any) -> Any:
        for name, one in parts(kind.__name__).items():
            own = 1 if name in OF_LAYERS else 2
            more[name] = one.transpose(*range(own, one.ndim), *range(own))
        return kind(**more)

    step, sinks = parts("step"), Candidates.of_reduced(parts("columns"), length, thresholds)
    main = {name: arrays[f"StepSummary.{name}"] for name in ("top", "largest")}
    found = {"main_position": main["top"], "main_column": main["largest"]}
    found |= {"main_excess": step["excess"], "main_percent": step["percent"]}
    records = [record(Evenness), record(GroupSinks), record(StepNorms)]
    if length > settings.prompt_length:
        answer = np.empty((), object)
        answer[()] = Candidates.of_reduced(parts("answer"), length, thresholds)
        records.append(record(AnswerMain, sinks=answer))
    return CountedStep(
        record(StepSummary, **found),
        sinks,
        sinks,
        step["means"][0, -length:],
        step["above"].transpose(2, 0, 1),
        step["bins"][:, :LINEAR_BINS],
        step["bins"][:, LINEAR_BINS:],
        records,
    )
