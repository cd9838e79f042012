"""What commands share: how they print, and how they open traces."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

Unit = Literal["queries", "percent", "mean"]
Json = Annotated[bool, tyro.conf.arg(name="json", help="prints one JSON document to standard output.", help_behavior_hint="(default: off)")]


def note(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """One document to standard output, and nothing else there."""
    print(json.dumps(document, ensure_ascii=False))


def given_flags(flags: Any) -> dict[str, Any]:
    """The flags that were given, by name."""
    return {name: value for name, value in vars(flags).items() if value is not None}


def opened(path: Path) -> list[Any]:
    """The traces at a path; incomplete ones are named on standard error."""
    from sinkscope.traces import open_traces

    traces = open_traces(path)
    for one in traces:
        one.verify()
        if not one.complete:
            note(f"{one.folder}: incomplete, {one.steps} whole steps")
        if one.manifest.get("level") == "top" and one.steps:
            kept = one.top_column_sums.shape[-1]
            note(f"{one.folder}: only the {kept} largest columns of each head were kept; a head with more sinks shows {kept} of them")
    return traces


def interval_words(prompts: int) -> str:
    """What to call an interval over so many prompts: with few, what it was measured to reach (docs/statistics.md)."""
    if prompts < 5:
        return "no interval: fewer than five prompts"
    few = "; with so few about 90 %" if prompts < 8 else "; with so few about 93 %" if prompts < 12 else ""
    return f"95 % interval over prompts{few}"
