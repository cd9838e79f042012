"""`table`: compares the accuracies of evaluations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from sinkscope import evaluation
from sinkscope.commands.command import Command, Json, required
from sinkscope.commands.output import say


@dataclass(frozen=True, kw_only=True)
class Table(Command):
    """Compare the accuracies of evaluations: paper 1's layout, intervals, paired tests, controls, verdicts.

    Attributes:
        results: folders that `sinkscope evaluate` wrote.
        format: text (a row a rule, seeds pooled), or each result as markdown, latex, csv or json.
    """

    results: Annotated[Positional[tuple[Path, ...]], required()]
    format: Literal["text", "markdown", "latex", "csv", "json"] = "text"
    json: Json = False

    def run(self) -> None:
        results = evaluation.read_results(*self.results)
        say(evaluation.write_table(results, "json" if self.json else self.format))
