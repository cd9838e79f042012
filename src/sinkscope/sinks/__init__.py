"""Sinks: what counts as one, where they are in a trace, and how they are followed over its steps."""

import warnings
from importlib import import_module
from typing import Any

from sinkscope.sinks.definition import (
    SinkRates,
    Unit,
    excess_of,
    in_unit,
    is_outlier,
    is_sink,
    is_top,
    last_query_window,
    running_mean,
    sink_rates,
    visible_query_mean,
)
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
