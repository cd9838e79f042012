"""The commands: each parses nothing, imports what it needs, calls one function and prints."""

from collections.abc import Callable

from sinkscope.commands.analysing import analyse
from sinkscope.commands.exporting import export
from sinkscope.commands.folding import convert, fold
from sinkscope.commands.mapping import attention_map
from sinkscope.commands.measuring import bench, evaluate, problems, table
from sinkscope.commands.models import check, train
from sinkscope.commands.reading import figures, sinks, tracks
from sinkscope.commands.reproducing import reproduce
from sinkscope.commands.writing import demo, trace

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "trace": trace,
    "sinks": sinks,
    "tracks": tracks,
    "analyse": analyse,
    "figures": figures,
    "map": attention_map,
    "export": export,
    "problems": problems,
    "evaluate": evaluate,
    "table": table,
    "reproduce": reproduce,
    "train": train,
    "fold": fold,
    "convert": convert,
    "check": check,
    "bench": bench,
}
