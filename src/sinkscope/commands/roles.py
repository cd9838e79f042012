"""`roles`: measures what the sink of each head does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

from sinkscope.commands.command import Command, Device, Dtype, Gpu, Json, ModelName, SamplerFlags, Tflops, default_is
from sinkscope.commands.output import note, print_json, say
from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.runs.share import expect_one_process

COLUMNS = (
    ("takes", "% of the predicting queries' attention on the sink / on the control; !: see above"),
    ("adds", "change of the predictions without what the sink adds, in 1/1000 nat, 95 % interval"),
    ("hidden", "the same where its attention goes to other keys"),
    ("others", "the control: the same for random keys, no sinks, with as much attention"),
    ("random", "the same for one random key"),
    ("top-1", "predictions whose first choice stays when the sink is hidden, in %"),
    ("goes to", "where most of its attention goes then: substitutes, text, the query itself, a sink token"),
    ("to hide", "largest columns to hide until the predictions change; ? and ≥: the intervals leave it open"),
    ("can go", "whether hiding it in this head alone changes nothing; ?: the interval holds both"),
)
WIDTH = 100
"""Of running text, in characters."""
REMOVABLE = {True: "yes", False: "no", None: "?"}
GOES = {"to_substitutes": "subst.", "to_text": "text", "to_itself": "itself", "to_sink_token": "token"}
MATCHED = 0.75
"""A control that holds less than this share of the sink's attention is marked."""
MEASURED = {
    "taken.sink": "it takes of the attention of the queries that predict, in %",
    "committed_share": "of those being committed, in %",
    "share": "of all queries, in %",
    "taken.rowmass": "the control takes of those that predict, in %",
    "norm_ratio": "its output norm, in medians of its canvas",
    "evenness": "evenness; 1 where all queries that predict attend to it alike",
    "kl.sink.zero": "change in nats where the sink's output is lost",
    "kl.sink": "where the sink is hidden",
    "kl.rowmass.zero": "where the control's output is lost",
    "kl.rowmass": "where the control is hidden",
    "kl.random": "where one random key is hidden",
    **{f"kl.top.{many}": f"where the {many} largest columns are hidden" for many in (2, 3, 4, 6, 8)},
}
UNMATCHED = "the control's keys hold much less attention than the sink, so that it says little"


@dataclass(frozen=True, kw_only=True)
class Roles(Command):
    """Measure what each sink does: idle, broadcast or carrier, with evidence; the same command resumes after a kill.

    A head is listed where it has a sink in nine of ten canvases. Its sink is taken from that head alone, and the change
    of the model's predictions is measured beside two controls; at the end all sinks that can go are hidden together. A
    bundled model writes 32 tokens in blocks of 16, one a step, where no length is given.

    Attributes:
        out: folder for the results; finished prompts are kept there.
        prompts: a file of JSON lines with a "prompt" each.
        problems: number of held-out problems of the lab, from the first.
        shots: solved problems in front of each of them.
        canvases: steps of each generation on which heads are asked; an autoregressive model is asked on its whole
            answer.
        rows: canvases in one forward call.
        control_seed: of the keys that are drawn at random.
        head: prints all the evidence of one head, such as 4.2, in words.
        dry_run: prints what it costs at most (forward calls, GPU hours, memory), and reads no weights.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    prompts: Annotated[Path | None, default_is("none")] = None
    problems: int = 48
    shots: int = 0
    canvases: int = 4
    rows: int = 32
    control_seed: int = 0
    device: Device = "cpu"
    dtype: Dtype = None
    head: Annotated[str | None, default_is("none")] = None
    dry_run: bool = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: SamplerFlags

    def run(self) -> None:
        import sinkscope
        from sinkscope.lab.prompts import answer_settings
        from sinkscope.models import is_bundled
        from sinkscope.progress import show_progress
        from sinkscope.roles import LEAST, find_roles

        if not self.dry_run:
            expect_one_process("roles")
            if self.out is None:
                raise CallError("expected --out FOLDER, or --dry-run")
        if self.prompts is not None:
            self.refuse("problems shots", "with --prompts")
        asked = None if self.head is None else read_head(self.head)
        texts, source = self._read_prompts()
        own = answer_settings(self.model) if is_bundled(self.model) and "length" not in self.sampler else {}
        settings = {**own, **self.sampler}
        if len(texts) < LEAST:
            raise CallError(f"expected at least {LEAST} prompts, half of them to judge the heads, found {len(texts)}")
        if self.dry_run:
            return self._print_cost(texts, settings)
        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        if asked is not None and not (asked[0] < model.card.layers and asked[1] < model.card.heads):
            most = f"{model.card.layers - 1}.{model.card.heads - 1}"
            raise CallError(f"--head {self.head}: expected a layer and a head of {self.model}, 0.0 to {most}")
        how = {"canvases": self.canvases, "rows": self.rows, "control_seed": self.control_seed}
        with show_progress(len(texts), self.model, "prompts") as bar:
            found = find_roles(model, texts, out=self.out, on_prompt=lambda _: bar.advance(), **how, **settings)
        found = replace(found, source=source)
        for number, why in found.failed.items():
            note(f"prompt {number} is left out: {why}")
        found.save(self.out)  # type: ignore[arg-type]  # only a dry run has none
        if self.json:
            print_json(found.as_dict())
        else:
            say(f"{heading(found)}\n\n{table(found) if asked is None else evidence(found, *asked)}")

    def _print_cost(self, texts: Sequence[str], settings: Mapping[str, Any]) -> None:
        from sinkscope.decoding import resolve_settings
        from sinkscope.evaluation.cost import assumptions, card_of, estimate_passes, text_tokens
        from sinkscope.evaluation.task_plans import family_and_shape
        from sinkscope.lab.prompts import task_of
        from sinkscope.roles import cost_of_roles

        family, shape = family_and_shape(self.model)
        calls = cost_of_roles(family, shape.layers, shape.heads, len(texts), self.canvases, self.rows, **settings)
        length, card = resolve_settings(family, **settings).length, card_of(self.gpu, self.tflops)
        if self.prompts is None:
            tokens, guess = text_tokens(task_of(self.model), self.shots), "typical for the lab's problems"
        else:
            tokens, guess = round(sum(map(len, texts)) / len(texts) / 4), "a quarter of their letters"
        canvas, writing = tokens + length, calls["generation"]
        written = len(texts) if family.causal else writing
        judging = (calls["passes"], calls["forwards"] - writing, self.rows)
        parts = (
            estimate_passes(shape, canvas, length, written, writing, 1, card),
            estimate_passes(shape, canvas, length, *judging, card),
        )
        found = {
            **calls,
            "gpu_hours": sum(part.gpu_hours for part in parts),
            "memory_gib": parts[1].memory_gib,
            "rows_on_card": parts[1].batch_on_card,
            "card": card.name,
            "prompt_tokens": tokens,
            "settings": dict(settings),
            "assumptions": assumptions(card)[:2],
        }
        if self.json:
            return print_json(found)
        fit, hours = found["rows_on_card"], found["gpu_hours"]
        say(f"at most {found['forwards']:,} forward calls, if all {counted(found['heads'], 'head')} have a sink:")
        say(f"  {writing:,} to write the answers")
        say(f"  {found['rows']:,} canvases, in batches of {self.rows}, to take each head's sink away")
        hours = f"{hours:.2f}" if hours >= 0.005 else "under 0.01"
        say(f"{hours} GPU hours and {found['memory_gib']:.2f} GiB on {card.name}", end=", ")
        say(f"which takes {fit:,} canvases of {canvas:,} tokens at a time" if fit else "where not one canvas fits")
        say(f"Assumed: prompts of {tokens:,} tokens ({guess}).", *found["assumptions"], sep="\nAssumed: ")

    def _read_prompts(self) -> tuple[list[str], dict[str, str | int]]:
        """Return the prompts and their source, which is stored with the roles."""
        from sinkscope.commands.trace import read_prompts
        from sinkscope.lab.prompts import problem_prompts, task_of

        if self.prompts is not None:
            return read_prompts(self.prompts), {"file": self.prompts.name}
        task = task_of(self.model)
        texts = [row["prompt"] for row in problem_prompts(task, self.problems, self.shots)]
        return texts, {"task": task, "shots": self.shots}


def heading(found: Any) -> str:
    """Return the model, the settings, and how many heads have each role."""
    from sinkscope.roles import ROLES

    shown = [name for name in ("length", "steps", "block", "canvases") if name in found.settings]
    used = ", ".join(f"{name} {found.settings[name]}" for name in shown)
    free, not_free = (sum(one.removable is wanted for one in found.heads) for wanted in (True, False))
    share = f"{len(found.heads)} of {found.layers * found.heads_in_layer}"
    chosen = counted(found.prompts - found.judged - len(found.failed), "prompt")
    tokens = " to ".join(map(str, sorted({*(found.canvas_tokens or ())})))
    canvases = f", canvases of {tokens} tokens" if tokens else ""
    lines = [
        f"{found.model}{f' ({used})' if used else ''}: {share} heads have a lasting sink "
        f"(Eq. 3, ε = {found.rules.excess:g})",
        f"chosen on {chosen}, judged on {found.judged} others{found.from_where}{canvases}",
        "  " + ", ".join(f"{found.count(role)} {role}" for role in ROLES),
        f"  hidden in its head alone, {free} of them change the predictions by less than {found.rules.changed:g} nats, "
        f"{not_free} by more",
    ]
    return "\n".join(lines)


def table(found: Any) -> str:
    """Return a line for each head, why heads are undecided, and what the columns mean."""
    from sinkscope.roles import ROLES

    rows = [["head", "role", "token", *(name for name, _ in COLUMNS)]]
    for one in sorted(found.heads, key=lambda one: (ROLES.index(one.role), one.layer, one.head)):
        taken = "/".join(_percent(_mean(one, f"taken.{name}"), below_one=1) for name in ("sink", "rowmass"))
        goes = {word: mean for name, word in GOES.items() if (mean := _mean(one, name)) is not None}
        shown = repr(one.token)
        cells = [f"{one.layer}.{one.head}", one.role, shown if len(shown) < 8 else shown[:6] + "…"]
        cells += [
            taken + "!" * _unmatched(one),
            *(_with_interval(one, name) for name in ("kl.sink.zero", "kl.sink")),
            *(_thousandths(_mean(one, name)) for name in ("kl.rowmass", "kl.random")),
            *(_percent(_mean(one, "kept.sink")), max(goes, key=lambda word: goes[word], default="–")),
            *(one.to_hide, REMOVABLE[one.removable]),
        ]
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    formats = [f"{'<' if number < 3 else '>'}{width}" for number, width in enumerate(widths)]
    lines = [*("  ".join(map(format, row, formats)).rstrip() for row in rows), ""]
    remarks: dict[str, list[str]] = {}
    for one in found.heads:
        if one.role == "undecided":
            remarks.setdefault(f"undecided {{}}: {one.reason}", []).append(f"{one.layer}.{one.head}")
        if _unmatched(one):
            remarks.setdefault(f"! {{}}: {UNMATCHED}", []).append(f"{one.layer}.{one.head}")
    lines += [fill(text.format(", ".join(mine)), WIDTH, subsequent_indent="  ") for text, mine in remarks.items()]
    meanings = [fill(f"{name:>8}  {meaning}", WIDTH, subsequent_indent=" " * 10) for name, meaning in COLUMNS]
    return "\n".join([*lines, "", *meanings, "", *(fill(line, WIDTH) for line in together(found).splitlines())])


def together(found: Any) -> str:
    """Return the cost of hiding all removable sinks at once, in words."""
    if found.together is None:
        return "Each sink was hidden in its head alone; what hiding several at once costs was not measured."
    sink, control = (found.together.measured.get(f"kl.{name}") for name in ("sink", "rowmass"))
    verdict = "Whether that is a change is open."
    if sink is not None and sink.low is not None:
        if sink.high < found.rules.changed:
            verdict = "Together, too, they change nothing."
        elif sink.low > found.rules.changed:
            verdict = "So each alone changes nothing, but together they do."
    return (
        f'All {len(found.together.heads)} that "can go", hidden together: {_in_words(sink, 4, " nats")},\n'
        f"{_percent(_mean(found.together, 'kept.sink'))} % of the first choices stay; the control in the same heads: "
        f"{_in_words(control, 4, ' nats')}.\n"
        f"{verdict} Other sets of heads were not tried."
    )


def evidence(found: Any, layer: int, head: int) -> str:
    """Return all measurements of one head, in words; raise CallError for one without a lasting sink."""
    one = found.of_head(layer, head)
    if one is None:
        known = ", ".join(f"{one.layer}.{one.head}" for one in found.heads)
        expected = f"such as {known}" if known else "found none in this model; leave --head out"
        raise CallError(f"--head {layer}.{head}: expected a head with a lasting sink, {expected}")
    lines = [
        f"head {layer}.{head} is {one.role}: {one.reason}",
        f"  its sink: most often {one.token!r}, at {_percent(one.place)} % of the canvas, "
        f"in {_percent(one.lasting)} % of the canvases",
    ]
    for name, text in MEASURED.items():
        if name in one.measured:
            factor = 100 if text.endswith("%") else 1
            shown = _in_words(one.measured[name], 4 if name.startswith("kl.") else 2, factor=factor)
            if name.startswith("kl."):
                shown += f", {_percent(_mean(one, f'kept{name[2:]}'))} % keep their first choice"
            lines.append(f"  {text + ':':<62}{shown}")
    if _unmatched(one):
        lines.append(f"  {UNMATCHED}")
    goes = [f"{word} {_percent(_mean(one, name))} %" for name, word in GOES.items() if name in one.measured]
    lines += [
        f"  hidden, its attention goes to: {', '.join(goes)}",
        f"  columns to hide until the predictions change by more than {found.rules.changed:g} nats: {one.to_hide}",
        f"  can it be hidden in this head alone: {REMOVABLE[one.removable]}",
    ]
    return "\n".join(lines)


def read_head(text: str) -> tuple[int, int]:
    """Return layer and head of a text such as ``4.2``."""
    try:
        layer, head = map(int, text.split("."))
    except ValueError as error:
        raise CallError(f"--head: expected LAYER.HEAD, such as 4.2, found {text!r}") from error
    return layer, head


def _mean(one: Any, name: str) -> float | None:
    estimate = one.measured.get(name)
    return None if estimate is None else estimate.mean


def _thousandths(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.1f}" if 1000 * value < 9.95 else f"{1000 * value:.0f}"


def _with_interval(one: Any, name: str) -> str:
    estimate = one.measured.get(name)
    if estimate is None or estimate.low is None:
        return _thousandths(_mean(one, name))
    return f"{_thousandths(estimate.mean)} {_thousandths(estimate.low)}–{_thousandths(estimate.high)}"


def _percent(value: float | None, below_one: int = 0) -> str:
    """Return a share in percent, with so many digits behind the point where it is less than one."""
    return "–" if value is None else f"{100 * value:.{below_one if value < 0.00995 else 0}f}"


def _unmatched(one: Any) -> bool:
    sink, control = (_mean(one, f"taken.{name}") for name in ("sink", "rowmass"))
    return sink is not None and control is not None and control < MATCHED * sink


def _in_words(estimate: Any, digits: int, unit: str = "", factor: float = 1.0) -> str:
    if estimate is None or estimate.mean is None:
        return "–"
    mean, low, high = (
        "–" if value is None else f"{factor * value:.{digits}f}"
        for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean if low == '–' else f'{mean} ({low} to {high})'}{unit}"
