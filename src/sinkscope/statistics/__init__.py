"""Statistics of sinks: one summary of each prompt, and every number that is read from it, defined once."""

from sinkscope.statistics.analysis import Analysis, Estimate, analyse, compare
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptCanvas, PromptSettings
from sinkscope.statistics.statistic import (
    Definition,
    Statistic,
    all_definitions,
    all_statistics,
    definition_of,
    feed_of,
    summarise,
)
from sinkscope.statistics.step import RecordedStep
from sinkscope.statistics.summary import Summary, document_of
from sinkscope.statistics.thresholds import EPSILONS, THRESHOLDS, Threshold

__all__ = [
    "Analysis",
    "Definition",
    "EPSILONS",
    "Estimate",
    "PromptCanvas",
    "PromptFeed",
    "PromptSettings",
    "PromptSummary",
    "RecordedStep",
    "Statistic",
    "Summary",
    "THRESHOLDS",
    "Threshold",
    "all_definitions",
    "all_statistics",
    "analyse",
    "compare",
    "definition_of",
    "document_of",
    "feed_of",
    "summarise",
]
