"""Statistics that merge: what a prompt shows while it is written, in arrays whose size does not grow with the prompts."""

from sinkscope.sinks.accumulators.statistics import Statistics
from sinkscope.sinks.accumulators.strength import count_above, epsilons, histogram_edges

__all__ = ["Statistics", "count_above", "epsilons", "histogram_edges"]
