"""The commands: each parses nothing, imports what it needs, calls one function and prints."""

from collections.abc import Callable

from sinkscope.commands.folding import convert, fold
from sinkscope.commands.measuring import bench, evaluate, problems, table
from sinkscope.commands.models import check, train
from sinkscope.commands.reading import figures, sinks, tracks
from sinkscope.commands.writing import demo, trace

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "trace": trace,
    "sinks": sinks,
    "tracks": tracks,
    "figures": figures,
    "problems": problems,
    "evaluate": evaluate,
    "table": table,
    "train": train,
    "fold": fold,
    "convert": convert,
    "check": check,
    "bench": bench,
}
