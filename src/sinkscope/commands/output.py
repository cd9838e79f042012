"""Prints the reports of commands, and opens the traces that they are given."""

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import sinkscope
from sinkscope import roles, statistics
from sinkscope.counts import counted
from sinkscope.runs.files import json_text

WIDTH = 80  # of printed lines, in characters
STYLES = {"ok": "green", "FAILED": "red", "dispensable": "green", "needed": "red", "open": "yellow"}
"""Styles of cells that begin with a word, in a terminal."""
HEADLINES = {
    "movement.longest_track": "heads that never have a sink",
    "movement.steps_with_sink": "steps with a sink, over all heads",
    "main_sink.share": "attention on the main place",
    "concentration.gu_rate_first": "first token with a mean α > 0.3 (Sink_1)",
    "movement.moves_per_head": "moves of a head",
    "movement.shuffled": "  with the steps shuffled",
    "equal_share.moves": "  at 3/16 of the attention",
    "norms.contribution_over_attention": "part of Σ c·‖v‖ over part of the attention",
    "movement.drift": "drift",
}
"""The statistics that are printed without ``--all``, in words."""
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that command a terminal: all controls but the end of a line and the tabulator."""


def note(text: str) -> None:
    """Print progress to standard error, without characters that command a terminal."""
    print(_harmless(text), file=sys.stderr, flush=True)


def say(*texts: object, sep: str = " ", end: str = "\n") -> None:
    """Print to standard output, without characters that command a terminal: names and texts may hold any."""
    print(_harmless(sep.join(map(str, texts))), end=end)


def say_wrapped(text: str, style: str = "") -> None:
    """Print a text within `WIDTH`, in a style where there is a terminal."""
    Console(file=sys.stdout, width=WIDTH).print(Text(_harmless(text), style))


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[str]) -> None:
    """Print a table within `WIDTH`; the columns ``texts`` stand to the left, and wrap where they are too wide."""
    columns = [Column(one, justify="left" if one in texts else "right", no_wrap=one not in texts) for one in names]
    table = Table(*columns, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_harmless(cell), STYLES.get(re.split("[ ,]", cell)[0], "")) for cell in row))
    Console(file=sys.stdout, width=WIDTH).print(table)


def cut(text: str, width: int) -> str:
    """Return a text, its end cut with "…" where it is longer than ``width`` characters."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def _harmless(text: str) -> str:
    return _COMMANDS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_json(document: Any) -> None:
    """Print one JSON document to standard output; nothing else is printed there."""
    print(json_text(document))


def open_and_check(*paths: Path) -> list[Any]:
    """Return the traces at paths after comparing their checksums; report incomplete and reduced ones."""
    found: list[Any] = []
    for path in paths:
        traces = sinkscope.open_traces(path)
        whole = [one for one in traces if one.steps or one.complete] or traces  # the command reports that none has one
        for trace in traces:
            trace.verify()
            if trace not in whole:
                note(f"{trace.folder}: left out, it holds no whole step; its recording was ended before")
            elif not trace.complete:
                note(f"{trace.folder}: incomplete, {counted(trace.steps, 'whole step')}")
            top = trace.top_column_sums.shape[-1] if trace.manifest.get("level") == "top" and trace.steps else None
            if top is not None and top < trace.column_sums.shape[-1]:
                largest = counted(top, "largest column")
                note(f"{trace.folder}: it keeps only the {largest} of each head, so no others are found")
        asked = traces[0].manifest.get("prompts_asked") or len(traces)
        if traces[0].folder != path and asked != len(traces):
            note(f"{path}: {counted(len(traces), 'trace')}, where {counted(asked, 'prompt')} were asked")
        found += whole
    return found


def roles_for_traces(folder: Path | None, traces: Sequence[Any]) -> Any:
    """Return the roles in a folder, None without one; refuse those of another model, report other canvases."""
    if folder is None:
        return None
    found = roles.read_roles(folder)
    for model in (one.manifest.get("model", {}) for one in traces):
        roles.roles_for(model.get("weight_hash"), found, model.get("config_hash"))
    if (doubt := found.doubt([one.manifest for one in traces])) is not None:
        note(doubt)
    return found


def describe_interval(prompts: int) -> str:
    """Name the interval over so many prompts; with few it covers less than 95 % (see benchmarks/RESULTS.md)."""
    few = "; with so few about 90 %" if prompts < 8 else "; with so few about 93 %" if prompts < 12 else ""
    return f"95 % interval over prompts{few}" if prompts >= 5 else "no interval: fewer than five prompts"


def print_statistics(rows: Iterable[dict[str, Any]], excess: float, unit: str, every: bool) -> None:
    """Print every statistic at one threshold, or `HEADLINES`; single layers are in the JSON only."""
    at, table, last = {"excess": excess, "unit": unit}, list[tuple[str, ...]](), ""
    rows = [row for row in rows if row["name"][-3:] != "_in" and {**at, **row["at"]}.items() >= at.items()]
    if not every:
        known = {row["name"]: row for row in rows if row["at"].get("kind", "none") == "none"}
        rows = [known.get(name, {"name": name, "at": {}, "unit": "not known here"}) for name in HEADLINES]
    for row in rows:
        family, _, short = row["name"].partition(".")
        place = {name: value for name, value in row["at"].items() if name not in at}
        if every and family != last:
            table += [("",), (last := family,)]
        if "text" in place:
            place = {"token": cut(repr(place["token"] if place["text"] is None else place["text"]), 20)}
        label = ", ".join([f"  {short.replace('_', ' ')}", *(f"{name} {value}" for name, value in place.items())])
        of = row.get("unit") or statistics.definition_of(row["name"]).unit
        factor, of = (100, f"%{of[5:]}") if of == "share" or of.startswith("share of") else (1, of)
        numbers = (row.get(name) for name in ("value", "low", "high"))
        value, *ends = ("–" if number is None else f"{factor * number:.4g}" for number in numbers)
        of += "" if row.get("p") is None else f", p {row['p']:.3f}"
        table.append((label if every else HEADLINES[row["name"]], value, "" if "–" in ends else " to ".join(ends), of))
    print_table(("statistic", "value", "interval", "unit"), table, ("statistic", "unit"))
    if not every:
        say("all of them: --all; what they mean: sinkscope analyse --definitions")


def print_costs(parts: Sequence[Any], gpu: Any, tflops: float | None, json: bool) -> None:
    """Print the costs of the parts of a dry run on a card."""
    from sinkscope.evaluation.cost import card_of, cost_document, cost_table

    costs = cost_document(parts, card_of(gpu, tflops))
    print_json(costs) if json else print(cost_table(costs))
