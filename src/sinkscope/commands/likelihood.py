"""`likelihood`: nats per token of your own text, while a rule hides keys behind a context."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from sinkscope.commands.command import Command, Device, Dtype, Json, ModelName, Switch, default_is
from sinkscope.commands.output import print_json, say


@dataclass(frozen=True, kw_only=True)
class Likelihood(Command):
    """Measure what hiding keys costs on your own text, in nats per token, with controls and paired intervals.

    Attributes:
        text: a text file, or JSON lines with {"text"} or {"prompt", "answer"}.
        hide: rules separated by commas, such as top:1,random:1,window:4+16.
        context: tokens that each window reads with all keys; the queries behind them lose keys.
        answer: tokens behind the context, whose nats are averaged.
        everywhere: hides from the context's queries too; a causal model then builds its sink anew on the next token.
        limit: number of windows.
        out: folder for finished windows; the same command resumes there.
    """

    model: ModelName
    text: Annotated[Path, arg(help_behavior_hint="(required)")]
    hide: str = "position:0,top:1,random:1"
    context: int = 64
    answer: int = 64
    everywhere: Switch = False
    limit: Annotated[int | None, default_is("all")] = None
    out: Annotated[Path | None, default_is("none")] = None
    dtype: Dtype = None
    device: Device = "cpu"
    json: Json = False

    def run(self) -> None:
        from sinkscope.evaluation.text_likelihood import read_texts, text_likelihood
        from sinkscope.interventions.rules import split_rules
        from sinkscope.models import load

        texts, rules = read_texts(self.text), split_rules(self.hide)
        model = load(self.model, dtype=self.dtype, device=self.device)
        settings = {"context": self.context, "answer": self.answer, "everywhere": self.everywhere}
        document = text_likelihood(model, texts, rules, limit=self.limit, out=self.out, **settings)
        if self.json:
            return print_json(document)
        where = "all queries" if self.everywhere or not model.family.causal else "the queries behind the context"
        rows = document["rows"]
        say(
            f"{document['model']}: {rows[0]['nats']:.3f} nats per token, {document['tokens']} tokens in "
            f"{document['windows']} windows behind {self.context} each; keys hidden from {where}"
        )
        say(f"\n{'hide':<24}{'nats':>8}{'more':>9}{'95 % interval':>20}{'attention removed':>20}")
        for row in rows:
            interval = "" if row["interval"] is None else "{:+.3f} to {:+.3f}".format(*row["interval"])
            more = "" if row["hide"] == "none" else f"{row['difference']:+.3f}"
            say(f"{row['hide']:<24}{row['nats']:>8.3f}{more:>9}{interval:>20}{row['removed_share']:>20.1%}")
