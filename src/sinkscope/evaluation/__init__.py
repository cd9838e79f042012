"""Accuracy on held-out tasks, with intervals; a sandbox for programs that models write."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkscope.evaluation.results import Result, read_results
    from sinkscope.evaluation.running import evaluate
    from sinkscope.evaluation.sandbox import ProgramResult, run_program
    from sinkscope.evaluation.tables import table, write_table
    from sinkscope.evaluation.tasks import TASKS, Score, Task

_HOME = {
    "ProgramResult": "sandbox",
    "Result": "results",
    "Score": "tasks",
    "TASKS": "tasks",
    "Task": "tasks",
    "evaluate": "running",
    "read_results": "results",
    "run_program": "sandbox",
    "table": "tables",
    "write_table": "tables",
}

__all__ = ["ProgramResult", "Result", "Score", "TASKS", "Task", "evaluate", "read_results", "run_program", "table", "write_table"]


def __getattr__(name: str) -> Any:
    """Imported when first used: the sandbox's processes and the figures need neither torch nor transformers."""
    if name not in _HOME:
        raise AttributeError(f"sinkscope.evaluation has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"sinkscope.evaluation.{_HOME[name]}"), name)
