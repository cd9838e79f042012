"""Names of the statistics in files from before the names were kept in them, where their order alone told them apart."""

from functools import cache

import numpy as np

from sinkscope.statistics.agreement import Agreement
from sinkscope.statistics.composition import Composition
from sinkscope.statistics.concentration import concentration_values, evenness_values, length_class, not_sink_values
from sinkscope.statistics.groups import Groups
from sinkscope.statistics.movement import Movement
from sinkscope.statistics.norms import Norms
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.statistic import Key, at_thresholds, feed_of
from sinkscope.statistics.thresholds import EPSILONS, THRESHOLDS, UNITS
from sinkscope.statistics.triggers import TRIGGERS, trigger_values


@cache
def keys_of_old_files(layers: int) -> tuple[Key, ...]:
    """Return the names and places of all numbers of a prompt in their old order, for a model of so many layers."""
    feed = feed_of(PromptSettings())
    for _ in range(2):
        feed.feed({"column_sums": np.zeros((layers, 1, 2)), "tokens": np.zeros(2, np.int64)})
    blank = feed.finish()
    values = evenness_values(blank) | not_sink_values(blank) | Movement().values(blank) | at_thresholds(blank, concentration_values)
    for family in (Groups(), Norms(), Composition(), Agreement()):
        values |= family.values(blank)
    keys = list(values)
    for threshold in THRESHOLDS:
        keys += [(name, (*threshold.place, *place)) for name, place in trigger_values(np.zeros((len(TRIGGERS), 1)))]
    for positions in (length_class(64 << number) for number in range(15)):
        for unit in UNITS:
            keys += [("epsilon.not_sinks", (("positions", positions), ("unit", unit), ("excess", one))) for one in EPSILONS[::2].tolist()]
    return tuple(dict.fromkeys(keys))
