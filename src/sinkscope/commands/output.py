"""Prints the reports of commands, and opens the traces that they are given."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkscope.counts import counted
from sinkscope.runs.files import json_text

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that command a terminal: all controls but the end of a line and the tabulator."""


def note(text: str) -> None:
    """Print progress to standard error, without characters that command a terminal."""
    print(_harmless(text), file=sys.stderr, flush=True)


def say(*texts: object, sep: str = " ", end: str = "\n") -> None:
    """Print to standard output, without characters that command a terminal: names and texts may hold any."""
    print(_harmless(sep.join(map(str, texts))), end=end)


def _harmless(text: str) -> str:
    return _COMMANDS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_json(document: Any) -> None:
    """Print one JSON document to standard output; nothing else is printed there."""
    print(json_text(document))


def print_one_or_all(documents: list[dict[str, Any]]) -> None:
    """Print the document of one trace, or those of several under ``"traces"``."""
    print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def open_and_check(*paths: Path) -> list[Any]:
    """Return the traces at paths after comparing their checksums; report incomplete and reduced ones."""
    from sinkscope.traces import open_traces

    found: list[Any] = []
    for path in paths:
        traces = open_traces(path)
        whole = [one for one in traces if one.steps or one.complete] or traces  # the command reports that none has one
        for trace in traces:
            trace.verify()
            if trace not in whole:
                note(f"{trace.folder}: left out, it holds no whole step; its recording was ended before")
                continue
            if not trace.complete:
                note(f"{trace.folder}: incomplete, {counted(trace.steps, 'whole step')}")
            if trace.manifest.get("level") == "top" and trace.steps:
                kept = trace.top_column_sums.shape[-1]
                if kept < trace.column_sums.shape[-1]:
                    largest = counted(kept, "largest column")
                    note(f"{trace.folder}: it keeps only the {largest} of each head, so no others are found")
        asked = traces[0].manifest.get("prompts_asked") or len(traces)
        if traces[0].folder != path and asked != len(traces):
            note(f"{path}: {counted(len(traces), 'trace')}, where {counted(asked, 'prompt')} were asked")
        found += whole
    return found


def roles_for_traces(folder: Path | None, traces: Sequence[Any]) -> Any:
    """Return the roles in a folder, None without one; report traces with shorter or longer canvases than theirs."""
    from sinkscope.roles import read_roles

    roles = None if folder is None else read_roles(folder)
    if roles is not None and (doubt := roles.doubt([one.manifest for one in traces])) is not None:
        note(doubt)
    return roles


def describe_interval(prompts: int) -> str:
    """Name the interval over so many prompts; with few it covers less than 95 % (see benchmarks/RESULTS.md)."""
    if prompts < 5:
        return "no interval: fewer than five prompts"
    few = "; with so few about 90 %" if prompts < 8 else "; with so few about 93 %" if prompts < 12 else ""
    return f"95 % interval over prompts{few}"


def print_statistics(rows: Sequence[dict[str, Any]], excess: float, unit: str) -> None:
    """Print statistics at one threshold; single layers and other thresholds are in the JSON only."""
    from sinkscope.statistics import definition_of

    last = ""
    for row in rows:
        (part, _, short), place = row["name"].partition("."), dict(row["at"])
        if short.endswith("_in") or (place.pop("excess", excess), place.pop("unit", unit)) != (excess, unit):
            continue
        if part != last:
            say(f"\n{part}")
            last = part
        if "text" in place:
            place = {"token": repr(place["text"] if place["text"] is not None else place["token"])}
        if "positions" in place:
            place["positions"] = f"{place['positions']} positions"
        label = f"{short.replace('_', ' ')}{''.join(f', {value}' for value in place.values())}"
        interval = "" if row["low"] is None else f"[{row['low']:.4g}, {row['high']:.4g}]"
        p = f"p {row['p']:.3f}" if row.get("p") is not None else ""
        value = "–" if row["value"] is None else f"{row['value']:.4g}"
        say(f"  {label:<48}{value:>10}  {interval:<24}{definition_of(row['name']).unit:<20}{p}".rstrip())


def print_costs(parts: Sequence[Any], gpu: Any, tflops: float | None, json: bool) -> None:
    """Print the costs of the parts of a dry run on a card."""
    from sinkscope.evaluation.cost import card_of, cost_document, cost_table

    costs = cost_document(parts, card_of(gpu, tflops))
    print_json(costs) if json else print(cost_table(costs))
