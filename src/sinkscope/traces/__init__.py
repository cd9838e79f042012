"""Traces: one folder for each recorded generation, written in parts and read lazily."""

from sinkscope.traces.bundles import open_bundle, write_bundle
from sinkscope.traces.exporting import export_trace, to_xarray
from sinkscope.traces.format import FORMAT
from sinkscope.traces.reading import Trace, open_trace, open_traces
from sinkscope.traces.statistics_folder import is_statistics, read_statistics
from sinkscope.traces.trace_array import TraceArray
from sinkscope.traces.writing import TraceWriter, claim_folder, move_trace

__all__ = [
    "FORMAT",
    "Trace",
    "TraceArray",
    "TraceWriter",
    "claim_folder",
    "export_trace",
    "is_statistics",
    "move_trace",
    "open_bundle",
    "open_trace",
    "open_traces",
    "read_statistics",
    "to_xarray",
    "write_bundle",
]
