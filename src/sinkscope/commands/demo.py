"""`demo`: a causal model and its diffusion sibling continue one prompt, with and without their sinks."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sinkscope
from sinkscope import figures
from sinkscope.commands.command import Command, Overwrite
from sinkscope.commands.output import note, say
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.folder import claimed_folder, names_in

PROMPT = (
    "Question: Tom has 7 apples and buys 5 more. Then he gives 4 apples to Ann. How many apples does Tom have now?\n"
    "Answer:"
)
TOP, EQUAL, RANDOM = "top:1", "rowmass:1", "random:1"
SAMPLED = {"dream": {"algorithm": "origin", "temperature": 0.8, "top_p": 0.9, "seed": 0}}
CAPTION = (
    "Nats per token of one text, the prompt and the first model's answer: a causal model reads the answer behind the "
    "prompt and loses keys in the answer's queries; a diffusion model fills masks in 32 random canvases and loses them "
    "in all queries. Attention removed: the share that the hidden keys would have got. rowmass hides random keys that "
    "hold as much as the largest, as far as there are such. One text has no interval; `sinkscope likelihood` measures "
    "many."
)


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Show the sinks of a causal model and of its diffusion sibling on one prompt, and what hiding them does.

    Attributes:
        prompt: text that every model continues; a chat model may say nothing behind a bare question.
        models: their names, separated by commas.
        out: a new or empty folder.
        length: tokens to write.
    """

    prompt: str = PROMPT
    models: str = "smollm2,smollm2-diffusion"
    out: Path = Path("demo-output")
    length: int = 48
    overwrite: Overwrite = False

    def run(self) -> None:
        """Record each model, hide its largest keys, draw figures; print a sentence a model and the pages' paths."""
        from sinkscope.evaluation.text_likelihood import text_likelihood
        from sinkscope.figures.page import EXPLORER, REPORT
        from sinkscope.traces import claim_folder

        out, names = self.out, self.models.split(",")
        started = time.monotonic()
        with claimed_folder(out, TraceError):
            begun = {*names_in(out)} <= {"traces", "figures", REPORT} and (out / "traces").is_dir()  # ended early
            if not begun and not (out / EXPLORER).exists():
                claim_folder(out, overwrite=None)
            elif not begun and not self.overwrite:
                raise CallError(f"{out} already holds a demo; choose another folder, or replace it: --overwrite")
            traces, rows, text = [], [], None
            for name in names:
                model = sinkscope.load(name)
                settings = {"length": self.length, **SAMPLED.get(model.family.name, {})}
                if not model.family.causal:
                    settings["steps"] = self.length
                rules = [f"{one}@last_row" if model.family.causal else one for one in (TOP, EQUAL)]
                with sinkscope.recording(model, out=out / "traces" / name, overwrite=self.overwrite or begun):
                    answer = sinkscope.generate(model, self.prompt, **settings).text
                written = {"": answer}
                for rule in rules:
                    with sinkscope.parse_rule(rule)(model):
                        written[rule] = sinkscope.generate(model, self.prompt, **settings).text
                text = self.prompt + answer if text is None else text
                ids, prompt = model.tokenize(text), model.tokenize(self.prompt)
                cut: dict[str, Any] = {"context": len(prompt), "answer": len(ids) - len(prompt)}
                if cut["answer"] < 8:  # an answer that ended at once: judge the second half of the text
                    cut = {"context": len(ids) // 2, "answer": len(ids) - len(ids) // 2}
                rules.append(RANDOM)
                judged = text_likelihood(model, [text], rules, **cut)["rows"]
                traces.append(sinkscope.open_trace(out / "traces" / name))
                where = headline(traces[-1])
                costs = ", ".join(
                    f"{one} {row['difference']:+.2f} nats a token ({row['removed_share']:.0%} of the attention removed)"
                    for one, row in zip(rules, judged[1:], strict=True)
                )
                say(f"{name}: {where} Hidden: {costs}.")
                say("\n".join(f"  {f'under {rule}' if rule else 'writes':26}{one!r}" for rule, one in written.items()))
                for rule, row in zip(["", *rules], judged, strict=True):
                    more, removed = f"{row['difference']:+.2f}", f"{row['removed_share']:.0%}"
                    rows.append([name, row["hide"], f"{row['nats']:.2f}", more, removed, written.get(rule, "")])
            missing: list[str] = []
            drawn = figures.draw_figures(traces, out / "figures", compare=len(traces) > 1, say=missing.append)
            columns = ["model", "hidden", "nats a token", "more", "attention removed", "writes"]
            tables = [{"title": "What hiding the main sink does", "columns": columns, "rows": rows, "caption": CAPTION}]
            command = f"sinkscope demo --out {out}"
            sinkscope.explore(traces).write_page(out / EXPLORER)
            shown: dict[str, Any] = {"figures": drawn, "tables": tables, "notes": missing, "command": command}
            page = figures.write_page(traces, out / REPORT, **shown)
            note(f"{time.monotonic() - started:.0f} s; the pages, the figures and the traces are in {out}")
        print(page, out / EXPLORER, sep="\n")


def headline(trace: Any) -> str:
    """Return a sentence on the main sinks of a trace: where most heads have theirs, and the moves."""
    from sinkscope.sinks import movement_test
    from sinkscope.sinks.followed_columns import Followed
    from sinkscope.sinks.tracking import place_of

    sinks = sinkscope.find_sinks(trace)
    place = place_of(sinks, trace.tokens[:])
    if place is None:
        return "no head has a main sink."
    tracks = sinkscope.track(sinks)
    moves = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted).moves_per_head
    where = place.text(trace.token_text(place.token), Followed.of(trace).words(trace.steps))
    return f"{where}; main sinks move {moves:.2f} times a head in {trace.steps} steps."
