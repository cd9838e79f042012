"""Bounds of flags, which stand beside their types, and the check of a parsed command against them."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from sinkscope.commands.command import Command
from sinkscope.errors import CallError

LARGEST = 1 << 31
"""Bound of whole numbers whose flag has none of its own."""


@dataclass(frozen=True)
class Between:
    """The least and the greatest value of a flag that is a number; it stands in the annotation of the flag's type."""

    least: int
    most: int


Seed = Annotated[int, Between(-(1 << 62), (1 << 62) - 1)]
Few = Annotated[int, Between(-LARGEST, 1 << 20)]
"""A number of steps, columns, prompts or rows; the code that takes it knows the least one."""
Jobs = Annotated[int, Between(0, 10_000)]
Shots = Annotated[int, Between(-LARGEST, 1000)]
Tokens = Annotated[int, Between(-LARGEST, 1 << 24)]


def check_bounds(command: Command) -> None:
    """Raise CallError where a flag is out of its bounds, or a number that is not finite.

    Raises:
        CallError: the first such flag.
    """
    for name, hint in get_type_hints(type(command), include_extras=True).items():
        value, flag = getattr(command, name), f"--{name.replace('_', '-')}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            raise CallError(f"{flag}: expected a finite number, found {value}")
        found = [one for one in metadata_in(hint) if isinstance(one, Between)]
        for bounds in found or [Between(-LARGEST, LARGEST)] * isinstance(value, int):
            if value > bounds.most:
                raise CallError(f"{flag}: expected a number up to {bounds.most:,}, found {_shown(value)}")
            if value < bounds.least:
                raise CallError(f"{flag}: expected a number from {bounds.least:,} upwards, found {_shown(value)}")


def metadata_in(hint: Any) -> list[Any]:
    """Return all that is annotated to a type and to its parts."""
    return [*getattr(hint, "__metadata__", ()), *(found for part in get_args(hint) for found in metadata_in(part))]


def types_in(hint: Any) -> list[Any]:
    """Return a type and its parts, in order."""
    return [hint, get_origin(hint), *(found for part in get_args(hint) for found in types_in(part))]


def _shown(value: float) -> str:
    return (
        f"{value:,}" if isinstance(value, float) or abs(value) < 1 << 63 else f"a number of {value.bit_length()} bits"
    )
