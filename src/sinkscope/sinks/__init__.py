"""Sinks: their definition, their places in a trace, and their tracks over its steps."""

from sinkscope.sinks.definition import (
    Unit,
    excess_of,
    in_unit,
    is_sink,
    last_query_window,
    running_mean,
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
    "track",
    "visible_query_mean",
]
