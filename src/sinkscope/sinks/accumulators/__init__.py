"""Statistics that merge: what a prompt shows while it is written, in arrays whose size does not grow with the prompts."""

from sinkscope.sinks.accumulators.statistics import Statistics

__all__ = ["Statistics"]
