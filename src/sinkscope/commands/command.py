"""What every command is, and the flags that several of them have.

A flag is a field of its command's frozen dataclass, written once: its type is the flag's type, its default the flag's default, and the
class's docstring says what it is for. tyro makes the command line of it.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg


class Command(ABC):
    """The flags of one command, as they were given."""

    @abstractmethod
    def run(self) -> None:
        """Do what the command says, and print."""


def default_is(text: str) -> Any:
    """Return an annotation for a flag whose default is None or empty: the help says "(default: ``text``)"."""
    return arg(help_behavior_hint=f"(default: {text})")


def required() -> Any:
    """Return an annotation for a list that must not be empty, which the command itself checks."""
    return arg(help_behavior_hint="(required)")


Switch = Annotated[bool, default_is("off")]
Json = Annotated[bool, arg(help="prints one JSON document to standard output.", help_behavior_hint="(default: off)")]
ModelName = Annotated[Positional[str], arg(help="a bundled name, a folder, or a hub id.")]
Device = Annotated[str, arg(help="cpu, cuda …")]
Dtype = Annotated[str | None, arg(help="float32, bfloat16 or float16.", help_behavior_hint="(default: the stored one)")]
TaskFiles = UseAppendAction[
    Annotated[tuple[str, ...], arg(help="TASK=PATH, a local JSON-lines file or folder of a published task; may be given several times.")]
]
Excess = Annotated[float, arg(help="how far a column must exceed the mean of the others (Eq. 3), in --unit.")]
Unit = Annotated[
    Literal["queries", "percent", "mean"],
    arg(help="unit of --excess: queries' worth of attention, percent of all attention, or mean (share)."),
]
RolesFile = Annotated[
    Path | None, arg(help="folder of `sinkscope roles`: what the sinks do.", help_behavior_hint="(default: that of a bundled model)")
]
Traces = Annotated[Positional[tuple[Path, ...]], required()]
