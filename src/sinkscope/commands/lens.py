"""`lens`: shows what the residual stream of sinks would predict, layer by layer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

import sinkscope
from sinkscope.commands.command import Command, Device, Json, default_is
from sinkscope.commands.map import model_of
from sinkscope.commands.output import cut, describe_interval, open_and_check, print_json, print_table, say_wrapped
from sinkscope.counts import counted
from sinkscope.errors import CallError, TraceError
from sinkscope.progress import show_progress
from sinkscope.runs.folder import claimed_file

SUFFIXES = (".png", ".pdf", ".svg")
UPDATES = 200
ROWS = 7


@dataclass(frozen=True, kw_only=True)
class Lens(Command):
    """Show what each layer's residual stream would predict at sinks, beside matched positions without one.

    Attributes:
        traces: folders of traces of one model; of several traces, intervals are over prompts.
        model: the model that wrote the traces, if it has moved; with --fit the one to fit.
        every: reads each so-manyth step.
        tuned: folder of a tuned lens, which --fit writes.
        fit: a file of JSON lines with a "text" each; fits a tuned lens to --model instead of reading traces.
        out: a figure (.png, .pdf or .svg); with --fit the folder of the tuned lens.
    """

    traces: Positional[tuple[Path, ...]] = ()
    model: Annotated[str | None, default_is("the name in the traces")] = None
    every: int = 1
    tuned: Annotated[Path | None, default_is("none: the logit lens")] = None
    fit: Annotated[Path | None, default_is("none")] = None
    out: Annotated[Path | None, default_is("none is written")] = None
    device: Device = "cpu"
    json: Json = False

    def run(self) -> None:
        if self.fit is not None:
            return self._fit(self.fit)
        if not self.traces:
            raise CallError("expected at least one trace, or --fit TEXTS --model NAME --out FOLDER")
        if self.out is not None and self.out.suffix not in SUFFIXES:
            raise CallError(f"--out {self.out}: expected a file that ends in {', '.join(SUFFIXES)}")
        from sinkscope.lenses import open_lens

        traces = open_and_check(*self.traces)
        model = model_of(traces[0], self.model, self.device)
        tuned = None if self.tuned is None else open_lens(self.tuned, model)
        many = sum(1 if one.causal else -(-one.steps // max(1, self.every)) for one in traces)
        with show_progress(many, model.card.name, "canvases") as bar:
            found = sinkscope.lens(model, traces, every=self.every, tuned=tuned, on_canvas=bar.advance)
        document = found.as_dict()
        if self.out is not None:
            _draw(document, self.out)
        if self.json:
            return print_json(document)
        _print(found)
        if self.out is not None:
            print(self.out)

    def _fit(self, texts: Path) -> None:
        self.refuse("tuned every", "with --fit")
        if self.traces or self.model is None or self.out is None:
            raise CallError("--fit: expected --model NAME and --out FOLDER, and no traces")
        from sinkscope.evaluation.text_likelihood import read_texts
        from sinkscope.lenses import fit_lens

        rows = read_texts(texts)
        model = sinkscope.load(self.model, dtype="float32", device=self.device)
        with show_progress(UPDATES, self.model, "updates") as bar:
            fitted = fit_lens(model, rows, updates=UPDATES, on_progress=lambda _: bar.advance())
        fitted.save(self.out)
        about: dict[str, Any] = {"lens": str(self.out), "updates": fitted.updates}
        about |= {"kl_before": [*fitted.kl_before], "kl": [*fitted.kl]}
        if self.json:
            return print_json(about)
        before, after = (sum(one) / len(one) for one in (fitted.kl_before, fitted.kl))
        held_out = "mean KL(final ‖ lens) over layers on held-out texts"
        say_wrapped(f"{self.out}: {held_out} {after:.2f} nats, of the logit lens {before:.2f}", "bold")


def _print(found: Any) -> None:
    say_wrapped(found.headline(), "bold")
    lens = "tuned lens" if found.tuned else "logit lens"
    many = describe_interval(found.traces) if found.over == "prompts" else "95 % interval over the steps of one answer"
    say_wrapped(
        f"{found.model}, {lens}, {counted(found.traces, 'trace')}; {many}; {found.alone} sinks without a match\n"
    )
    names = ("place", "layer", "entropy", "", "KL", "", "agrees", "", "rank", "", "top token")
    table, agreement, rank = list[tuple[str, ...]](), f"agreement.{found.predicts}", f"rank.{found.predicts}"
    layers = sorted({round(at * (found.layers - 1) / (ROWS - 1)) for at in range(ROWS)} | {found.layer})
    for sink in (one for one in found.groups if one.kind == "sink"):
        match = found.of(sink.place, "match")
        for layer in layers:
            cells = []
            for name, form in (("entropy", ".2f"), ("kl", ".2f"), (agreement, ".0%"), (rank, ",.0f")):
                cells += [format(float(one.means[name].mean[layer]), form) for one in (sink, match)]
            token, share = sink.top[layer]
            text = cut(repr(found.vocabulary.get(token, f"<{token}>")), 12)
            table.append((sink.place, str(layer), *cells, f"{text} {share:.0%}"))
    print_table(names, table, ("place", "top token"))
    what = "its own token" if found.predicts == "here" else "the next token"
    say_wrapped(f"\nof each pair of columns sinks first, then their matches; agrees: the top token is finally {what}")


def _draw(document: dict[str, Any], out: Path) -> None:
    import io

    from sinkscope.figures.lens_figure import draw_lens
    from sinkscope.figures.style import figure_style
    from sinkscope.traces.format import write_whole

    with claimed_file(out, TraceError), figure_style():
        content, drawn = io.BytesIO(), draw_lens(document)
        drawn.sheet.savefig(content, format=out.suffix[1:], metadata={"Title": drawn.title})
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content.getvalue())
