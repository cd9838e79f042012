"""`sinks`: shows which tokens of a trace are sinks, or the numbers of a folder of statistics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.analyse import show_statistics
from sinkscope.commands.command import Command, Excess, Json, Rule, Unit
from sinkscope.commands.output import cut, open_and_check, print_json, print_table, say_wrapped
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
            return show_statistics(self.trace, self.json)
        from sinkscope.sinks import find_sinks
        from sinkscope.sinks.tracking import place_of

        documents = []
        for trace in open_and_check(self.trace):
            found = find_sinks(trace, self.excess, self.unit, self.rule)
            place = place_of(found, trace.tokens[:])
            if not self.json:
                _print_sinks(trace, found, place)
                continue
            document: dict[str, Any] = {"trace": str(trace.folder), "complete": trace.complete}
            document |= {
                "excess": self.excess,
                "unit": self.unit,
                "rule": found.rule,
                "main_sink": None if place is None else vars(place),
            }
            document |= dict(zip(("steps", "layers", "heads"), found.shape, strict=False))
            documents.append({**document, "sinks": found.rows(), "selected_share": found.selected_share})
        if self.json:
            print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _print_sinks(trace: Any, found: Any, place: Any) -> None:
    from sinkscope.sinks.definition import RULE_TEXTS
    from sinkscope.sinks.followed_columns import Followed, mean_share

    steps, layers, heads, _ = found.shape
    queries = Followed.of(trace).words(trace.steps)
    none = f"no head has a main sink in the attention of {queries}"
    text = none if place is None else place.text(trace.token_text(place.token), queries)
    say_wrapped(f"{trace.folder}: {text}", "bold")
    shape = f"{counted(steps, 'step')}, {counted(layers, 'layer')}, {counted(heads, 'head')}"
    over = f"excess over {RULE_TEXTS[found.rule]} > {found.threshold:g} {found.unit}"
    say_wrapped(f"{counted(len(found), 'sink')} in {shape}, {found.selected_share:.2%} of the columns; {over}\n")
    newest = mean_share(found.columns[found.uncounted :].mean(axis=(1, 2))) if trace.causal else None
    names, rows = ("position", "token", "times a sink", "mean column", "mean α", "newest"), []
    for position, token, count, mean, seen in found.places()[:12]:
        ends = () if newest is None else (f"{seen:.3f}", f"{newest[position]:.1%}")
        rows.append((str(position), cut(repr(trace.token_text(token)), 24), str(count), f"{mean:.1f}", *ends))
    print_table(names[: 4 if newest is None else 6], rows, ("token",))
    if newest is not None:
        say_wrapped(f"mean α: of the queries that see the token; newest: share of the attention of {queries}")
