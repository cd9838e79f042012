"""Sinks: what counts as one, where they are in a trace, and how they move."""

from sinkscope.sinks.analysis import Analysis, Statistic, analyse, compare
from sinkscope.sinks.catalogue import DEFINITIONS, Definition
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
from sinkscope.sinks.mixing import attention_variance, effective_rank, mean_cosine, perturbation_spread
from sinkscope.sinks.points import POINTS, Point
from sinkscope.sinks.profile import Profile, profile_of
from sinkscope.sinks.tracking import HeadMovement, MovementTest, Track, Tracks, main_sinks, movement_test, track

__all__ = [
    "Analysis",
    "DEFINITIONS",
    "Definition",
    "HeadMovement",
    "MovementTest",
    "POINTS",
    "Point",
    "Profile",
    "SinkRates",
    "Sinks",
    "Statistic",
    "Track",
    "Tracks",
    "Unit",
    "analyse",
    "attention_variance",
    "compare",
    "effective_rank",
    "excess_of",
    "find_sinks",
    "in_unit",
    "is_outlier",
    "is_sink",
    "is_top",
    "last_query_window",
    "main_sinks",
    "mean_cosine",
    "movement_test",
    "perturbation_spread",
    "profile_of",
    "running_mean",
    "sink_rates",
    "track",
    "visible_query_mean",
]
