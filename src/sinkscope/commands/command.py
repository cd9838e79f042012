"""The base class of commands, and the flags that several commands have.

A flag is a field of the command's frozen dataclass. Its type and default are those of the flag, and the docstring of
the class is its help. tyro builds the command line from this.
"""

from abc import ABC, abstractmethod
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from sinkscope.errors import CallError


class Command(ABC):
    """A command with the values of its flags. The first line of its docstring is its line in ``sinkscope --help``."""

    @abstractmethod
    def run(self) -> None:
        """Run the command and print the result."""

    def refuse(self, names: str, why: str) -> None:
        """Raise CallError for flags whose values would be ignored, unless they have their default.

        Args:
            names: of their fields, separated by spaces.
            why: such as ``without --keep top``.
        """
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in names.split() and getattr(self, field.name) != field.default:
                flag = f"--{'no-' if field.default is True else ''}{field.name}".replace("_", "-")
                raise CallError(f"{flag} is not used {why}; leave it out")


def default_is(text: str) -> Any:
    """Return an annotation for a flag whose default is None or empty: the help says "(default: ``text``)"."""
    return arg(help_behavior_hint=f"(default: {text})")


def required() -> Any:
    """Return an annotation for a list that must not be empty, which the command itself checks."""
    return arg(help_behavior_hint="(required)")


Switch = Annotated[bool, default_is("off")]
Overwrite = Annotated[bool, arg(help="replaces the recording that --out holds.", help_behavior_hint="(default: off)")]
Json = Annotated[bool, arg(help="prints one JSON document to standard output.", help_behavior_hint="(default: off)")]
Gpu = Annotated[
    Literal["a100", "a100-40gb", "h100", "h200", "l40s", "rtx4090"] | None,
    arg(help="card of the dry run.", help_behavior_hint="(default: one of 24 GB, as fast as an A100)"),
]
Tflops = Annotated[
    float | None,
    arg(help="its speed there, in 10¹² operations a second.", help_behavior_hint="(default: 40 % of the card's peak)"),
]
ModelName = Annotated[Positional[str], arg(help="a built-in name, a folder, a .gguf file, or a hub id.")]
Device = Annotated[str, arg(help="cpu, cuda …")]
Dtype = Annotated[str | None, arg(help="float32, bfloat16 or float16.", help_behavior_hint="(default: the stored one)")]
TaskFiles = UseAppendAction[
    Annotated[
        tuple[str, ...],
        arg(help="TASK=PATH, a local JSON-lines file or folder of a published task; may be given several times."),
    ]
]
Excess = Annotated[float, arg(help="how far a column must exceed the mean of the others (Eq. 3), in --unit.")]
Unit = Annotated[
    Literal["queries", "percent", "mean"],
    arg(help="unit of --excess: queries' worth of attention, percent of all attention, or mean (share)."),
]
RolesFile = Annotated[
    Path | None, arg(help="folder of `sinkscope roles`: what the sinks do.", help_behavior_hint="(default: none)")
]
Traces = Annotated[Positional[tuple[Path, ...]], required()]
