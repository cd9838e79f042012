"""Sinks: their definition, their places in a trace, and their tracks over its steps."""

from sinkscope.sinks.definition import (
    SinkRates,
    Unit,
    excess_of,
    in_unit,
    is_sink,
    last_query_window,
    running_mean,
    sink_rates,
    visible_query_mean,
)
from sinkscope.sinks.finding import Sinks, find_sinks
from sinkscope.sinks.tracking import (
    HeadMovement,
    MovementTest,
    SinksIn,
    Track,
    Tracks,
    main_sinks,
    movement_test,
    track,
)

__all__ = [
    "HeadMovement",
    "MovementTest",
    "SinkRates",
    "Sinks",
    "SinksIn",
    "Track",
    "Tracks",
    "Unit",
    "excess_of",
    "find_sinks",
    "in_unit",
    "is_sink",
    "last_query_window",
    "main_sinks",
    "movement_test",
    "running_mean",
    "sink_rates",
    "track",
    "visible_query_mean",
]
