"""Sinks: what counts as one, where they are in a trace, and how they are followed over its steps."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float

from sinkscope.argument_types import checked
from sinkscope.errors import CallError
from sinkscope.sinks import definition
from sinkscope.sinks.definition import SinkRates, Unit
from sinkscope.sinks.finding import Sinks, find_sinks
from sinkscope.sinks.tracking import HeadMovement, MovementTest, Track, Tracks, main_sinks, movement_test, sinks_in, track

__all__ = [
    "HeadMovement",
    "MovementTest",
    "SinkRates",
    "Sinks",
    "Track",
    "Tracks",
    "Unit",
    "excess_of",
    "find_sinks",
    "in_unit",
    "is_outlier",
    "is_sink",
    "is_top",
    "last_query_window",
    "main_sinks",
    "movement_test",
    "running_mean",
    "sink_rates",
    "sinks_in",
    "track",
    "visible_query_mean",
]

excess_of = checked(definition.excess_of)
in_unit = checked(definition.in_unit)
is_outlier = checked(definition.is_outlier)
is_sink = checked(definition.is_sink)
is_top = checked(definition.is_top)
running_mean = checked(definition.running_mean)
sink_rates = checked(definition.sink_rates)
visible_query_mean = checked(definition.visible_query_mean)


@checked
def last_query_window(last_query: Float[np.ndarray, "step layer head key"], window: int = 16) -> Float[np.ndarray, "step layer head key"]:
    """Return `definition.last_query_window`.

    Raises:
        CallError: ``window`` below 1.
    """
    if window < 1:
        raise CallError(f"window: expected a number of queries from 1 upwards, found {window}")
    return definition.last_query_window(last_query, window)


_MOVED_TO = "sinkscope.statistics"
_MOVED = {
    "Analysis": "Analysis",
    "Definition": "Definition",
    "POINTS": "THRESHOLDS",
    "Point": "Threshold",
    "Statistic": "Estimate",
    "analyse": "analyse",
    "compare": "compare",
}
"""Names that left this package: {old name: name in `sinkscope.statistics`}. They work for one more release."""


def __getattr__(name: str) -> Any:
    """Return a name that moved to `sinkscope.statistics`, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module 'sinkscope.sinks' has no attribute {name!r}")
    warnings.warn(f"sinkscope.sinks.{name} is {_MOVED_TO}.{_MOVED[name]} now", DeprecationWarning, stacklevel=2)
    return getattr(import_module(_MOVED_TO), _MOVED[name])
