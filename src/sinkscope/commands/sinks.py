"""`sinks`: shows which tokens of a trace are sinks, or the numbers of a folder of statistics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.command import Command, Excess, Json, Rule, Unit
from sinkscope.commands.output import (
    describe_interval,
    note,
    open_and_check,
    print_json,
    print_one_or_all,
    print_statistics,
    say,
)
from sinkscope.counts import counted


@dataclass(frozen=True, kw_only=True)
class Sinks(Command):
    """Show which tokens are sinks, where, and how strong.

    Attributes:
        trace: folder of a trace, of numbered traces, or of statistics (whose threshold is fixed).
    """

    trace: Positional[Path]
    excess: Excess = 3.0
    unit: Unit = "queries"
    rule: Rule = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.traces.statistics_folder import is_statistics

        if is_statistics(self.trace):
            self.refuse("excess unit rule", "for statistics, whose threshold is fixed")
            document = statistics_document(self.trace)
            if not document["complete"]:
                note(f"{self.trace}: incomplete, {counted(document['prompts'], 'prompt')}")
            return print_json(document) if self.json else _print_statistics(document)
        from sinkscope.sinks import find_sinks
        from sinkscope.sinks.tracking import place_of

        documents = []
        for trace in open_and_check(self.trace):
            found = find_sinks(trace, self.excess, self.unit, self.rule)
            place = place_of(found, trace.tokens[:])
            if not self.json:
                _print_sinks(trace, found, place)
                continue
            document = {
                "trace": str(trace.folder),
                "complete": trace.complete,
                "excess": self.excess,
                "unit": self.unit,
                "rule": found.rule,
                "main_sink": None if place is None else vars(place),
            }
            document |= dict(zip(("steps", "layers", "heads"), found.shape, strict=False))
            documents.append({**document, "sinks": found.rows(), "selected_share": found.selected_share})
        if self.json:
            print_one_or_all(documents)


def _print_sinks(trace: Any, found: Any, place: Any) -> None:
    import numpy as np

    from sinkscope.sinks.definition import RULE_TEXTS
    from sinkscope.sinks.followed_columns import Followed, mean_share

    steps, layers, heads, keys = found.shape
    queries = Followed.of(trace).words(trace.steps)
    text = f"no head has a main sink in the attention of {queries}"
    if place is not None:
        text = place.text(trace.token_text(place.token), queries)
    say(f"{trace.folder}: {text}")
    shape = f"{counted(steps, 'step')}, {counted(layers, 'layer')}, {counted(heads, 'head')}"
    over = f"excess over {RULE_TEXTS[found.rule]} > {found.threshold:g} {found.unit}"
    say(f"{counted(len(found), 'sink')} in {shape}, {found.selected_share:.2%} of the columns; {over}")
    most = np.rint(np.nansum(trace.column_sums[:], axis=-1).max())  # cross-attention has more
    if found.unit == "queries" and found.threshold >= max(keys, most):
        reached = f"no column of {keys} tokens can exceed the others by {found.threshold:g}"
        note(f"{trace.folder}: {reached}; give a lower --excess")
    newest = mean_share(found.columns[found.uncounted :].mean(axis=(1, 2))) if trace.causal else None
    ends = "" if newest is None else f"{'visible-query mean':>20}{'newest queries':>16}"
    say(f"\n{'position':>8}  {'token':<14}{'times a sink':>12}{'mean column':>13}{ends}")
    for position, token, count, mean, seen in found.places()[:12]:
        ends = "" if newest is None else f"{seen:>20.3f}{newest[position]:>16.1%}"
        say(f"{position:>8}  {trace.token_text(token)!r:<14}{count:>12}{mean:>13.1f}{ends}")
    if newest is not None:
        say(f"newest queries: share of the attention of {queries}, mean over all heads and steps")


def statistics_document(folder: Path) -> dict[str, Any]:
    """Return the document of ``sinks --json`` for a folder of statistics."""
    from sinkscope.statistics import Summary, document_of
    from sinkscope.traces import read_statistics

    manifest, arrays, texts = read_statistics(folder)
    summary = Summary.from_arrays(arrays)
    special = tuple(token for token in (manifest.get("eos_id"),) if token is not None)
    about = {"level": "statistics", "trace": str(folder), "complete": manifest["complete"]}
    about |= {"prompts": manifest["prompts"], "excess": summary.excess, "unit": "queries", "rule": summary.rule}
    return {**about, **document_of(summary, texts, manifest.get("mask_id"), special)}


def _print_statistics(document: dict[str, Any]) -> None:
    from sinkscope.sinks.definition import RULE_TEXTS

    counts, prompts = document["counts"], document["prompts"]
    share = counts["sinks"] / max(1, counts["columns"])
    steps, sinks = counted(counts["steps"], "step"), counted(counts["sinks"], "sink")
    main = max(counts["tokens"], key=lambda row: row["main_sinks"], default=None)
    if main is None or not main["main_sinks"]:
        say(f"{document['trace']}: no head has a main sink")
    else:
        text = main["text"] if main["text"] is not None else f"<{main['token']}>"
        of = main["main_sinks"] / sum(one["main_sinks"] for one in counts["classes"].values())
        say(f"{document['trace']}: {text!r} is {of:.1%} of the main sinks of heads and steps")
    say(f"{counted(prompts, 'prompt')}, {steps}, {sinks} ({share:.2%} of the columns)")
    over = f"excess over {RULE_TEXTS[document['rule']]} > {document['excess']:g} queries"
    say(f"{over}; mean over prompts, with {describe_interval(prompts)}")
    for name, found in document["means"]["by_prompt"].items():
        interval = "" if found["interval"] is None else "  ({:.4g} to {:.4g})".format(*found["interval"])
        mean = "–  (no prompt has one, or all are too short)" if found["mean"] is None else f"{found['mean']:.4g}"
        say(f"  {name.replace('_', ' '):<34}{mean:>10}{interval}")
    print_statistics(document["statistics"], document["excess"], "queries")
    say(f"\n{'token':<16}{'class':<14}{'share of sinks':>15}{'of canvas':>11}")
    canvas = max(1, sum(one["canvas"] for one in counts["classes"].values()))
    for row in counts["tokens"][:12]:
        text = row["text"] if row["text"] is not None else f"<{row['token']}>"
        share = row["sinks"] / max(1, counts["sinks"])
        say(f"{text!r:<16}{row['class']:<14}{share:>15.2%}{row['canvas'] / canvas:>11.2%}")
