# isort: skip_file

from .analysis import Analysis as Analysis, Estimate as Estimate, analyse as analyse, compare as compare
from .prompt import PromptFeed as PromptFeed, PromptSummary as PromptSummary
from .prompt_canvas import PromptCanvas as PromptCanvas, PromptSettings as PromptSettings
from .statistic import (
    Definition as Definition,
    Statistic as Statistic,
    all_definitions as all_definitions,
    all_statistics as all_statistics,
    definition_of as definition_of,
    feed_of as feed_of,
    summarise as summarise,
)
from .step import RecordedStep as RecordedStep
from .summary import Summary as Summary, document_of as document_of
from .thresholds import EPSILONS as EPSILONS, THRESHOLDS as THRESHOLDS, Threshold as Threshold
