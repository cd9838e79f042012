"""`likelihood`: nats per token of your own text, while a rule hides keys behind a context."""

from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated

from tyro.conf import arg

import sinkscope
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

        texts, rules = read_texts(self.text), sinkscope.interventions.split_rules(self.hide)
        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        settings = {"context": self.context, "answer": self.answer, "everywhere": self.everywhere}
        document = text_likelihood(model, texts, rules, limit=self.limit, out=self.out, **settings)
        if self.json:
            return print_json(document)
        from sinkscope.evaluation.tables import WIDTH, text_table

        behind, lines, notes = model.family.causal and not self.everywhere, [], []
        rows = document["rows"]
        for row in rows:
            hidden, moved, gained = row["hide"] != "none", row["moved"], ""
            more = f"{row['difference']:+.3f}" if hidden else ""
            more += "" if row["interval"] is None else " ({:+.3f}, {:+.3f})".format(*row["interval"])
            if moved is not None:
                gained = f"{moved['position']}: {moved['without']:.1%} → {moved['hidden']:.1%}"
                gain = moved["hidden"] - moved["without"]
                if gain > max(moved["without"], row["removed_share"] / 2):
                    notes.append(f"{row['hide']}: the sink is rebuilt at position {gained}.")
            taken = f"{row['removed_share']:.1%}" if hidden else ""
            lines.append([row["hide"], f"{row['nats']:.3f}", more, taken, gained])
            notes += row["without_effect"]
        windows = f"{document['windows']} windows behind {self.context} each"
        title = f"{document['model']}: {rows[0]['nats']:.3f} nats per token, {document['tokens']} tokens in {windows}"
        heads = ["hide", "nats", "more (95 %)", "taken", "position that gains most"]
        where = "the queries behind the context, as by a cache that drops them" if behind else "all queries"
        if model.family.causal and not behind:
            where += ", which understates: a sink is rebuilt on another token"
        notes.append(f"Keys are hidden from {where}. Taken: the share of the attention that they had.")
        say(text_table(title, heads, lines), "", *(fill(line, WIDTH) for line in notes), sep="\n")
