"""Sinks: what counts as one, where they are in a trace, and how they are followed over its steps."""

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from sinkscope.errors import CallError
from sinkscope.sinks import definition
from sinkscope.sinks.definition import LEAST_QUERIES, SinkRates, Unit
from sinkscope.sinks.finding import Sinks, find_sinks
from sinkscope.sinks.tracking import (
    HeadMovement,
    MovementTest,
    Track,
    Tracks,
    main_sinks,
    movement_test,
    sinks_in,
    track,
)

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

excess_of = definition.excess_of
is_sink = definition.is_sink
is_top = definition.is_top
running_mean = definition.running_mean
visible_query_mean = definition.visible_query_mean


def in_unit(
    columns: Float[np.ndarray, "*step layer head key"], unit: Unit
) -> Float[np.ndarray, "*step layer head key"]:
    """Return `definition.in_unit`.

    Raises:
        CallError: an unknown unit.
    """
    definition.check_excess(0.0, unit)
    return definition.in_unit(columns, unit)


def is_outlier(
    columns: Float[np.ndarray, "step layer head key"], deviations: float = 2.0
) -> Bool[np.ndarray, "step key"]:
    """Return `definition.is_outlier`.

    Raises:
        CallError: ``deviations`` that are no finite number from 0 upwards, or no columns.
    """
    _check_columns(columns, "deviations", deviations)
    return definition.is_outlier(columns, deviations)


def sink_rates(
    columns: Float[np.ndarray, "step layer head key"],
    causal: bool,
    threshold: float = 0.3,
    least_queries: int = LEAST_QUERIES,
) -> SinkRates:
    """Return `definition.sink_rates`.

    Raises:
        CallError: a threshold that is no finite number from 0 upwards, ``least_queries`` below 1, or no columns.
    """
    _check_columns(columns, "threshold", threshold)
    return definition.sink_rates(columns, causal, threshold, least_queries)


def _check_columns(columns: np.ndarray, name: str, least: float) -> None:
    """Raise an error for steps without any column, or for a number from which they count that is none."""
    if not np.isfinite(least) or least < 0:
        raise CallError(f"{name}: expected a finite number from 0 upwards, found {least}")
    if 0 in columns.shape[1:]:
        raise CallError(f"columns: expected at least one layer, head and key, found {list(columns.shape)}")


def last_query_window(
    last_query: Float[np.ndarray, "step layer head key"], window: int = 16
) -> Float[np.ndarray, "step layer head key"]:
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
