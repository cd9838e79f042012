"""`roles`: measures what the sink of each head does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Annotated, Any

from tyro.conf import arg

import sinkscope
from sinkscope import decoding, models, roles
from sinkscope.commands import command
from sinkscope.commands.output import WIDTH, cut, note, print_json, print_table, say
from sinkscope.commands.trace import read_prompts
from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.progress import show_stages
from sinkscope.runs.folder import expect_one_process

COLUMNS = {
    "head": "",
    "verdict": "whether its sink can go; what it adds",
    "token": "",
    "takes": "% of the predicting queries' attention on the sink / on the control; !: see above",
    "adds": "change of the predictions without what the sink adds, in 1/1000 nat",
    "hidden": "the same where its attention goes to other keys, with a 95 % interval",
    "others": "the control: the same for random keys, no sinks, with as much attention",
    "to hide": "largest columns to hide until the predictions change; ? and ≥: the intervals leave it open",
}
GOES = {"to_substitutes": "subst.", "to_text": "text", "to_itself": "itself", "to_sink_token": "token"}
MATCHED = 0.75  # a control that holds less than this share of the sink's attention is marked
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
    **{f"kl.top.{many}": f"where the {many} largest columns are hidden" for many in (2, 3, 4, 6, 8)},
}
UNMATCHED = "the control's keys hold much less attention than the sink, so that it says little"


@dataclass(frozen=True, kw_only=True)
class Roles(command.Command):
    """Measure whether each sink can go and what it adds, with evidence; the same command resumes after a kill.

    A head is listed where it has a sink in nine of ten canvases. Its sink is taken from that head alone, and the change
    of the model's predictions is measured beside a control; at the end the sinks of each class are hidden together.
    It needs at least ten prompts. A bundled model writes 32 tokens in blocks of 16, where no length is given.

    Attributes:
        out: folder for the results; finished prompts are kept there.
        prompts: a file of at least ten JSON lines with a "prompt" each.
        problems: number of held-out problems of the lab, from the first; at least ten.
        shots: solved problems in front of each of them.
        canvases: steps of each generation on which heads are asked; an autoregressive model is asked on its whole
            answer.
        rows: canvases in one forward call, fewer on a CPU.
        control_seed: of the keys that are drawn at random.
        head: prints all the evidence of heads, such as 4.2,5.0, in words.
        dry_run: prints what it costs at most (time, forward calls), and reads no weights.
    """

    model: command.ModelName
    out: Annotated[Path | None, command.default_is("none, which only a dry run allows")] = None
    prompts: Annotated[Path | None, command.default_is("none")] = None
    problems: int = 48
    shots: int = 0
    canvases: int = 4
    rows: int = 32
    control_seed: int = 0
    device: command.Device = "cpu"
    dtype: Annotated[str, arg(help="float32, bfloat16 or float16; the last two are too coarse for small changes.")] = (
        "float32"
    )
    head: Annotated[str | None, command.default_is("none")] = None
    dry_run: bool = False
    gpu: command.Gpu = None
    tflops: command.Tflops = None
    json: command.Json = False
    sampler: command.SamplerFlags

    def run(self) -> None:
        from sinkscope.lab.prompts import answer_settings

        if not self.dry_run:
            expect_one_process("roles")
            command.expect_out(self.out)
        if self.prompts is not None:
            self.refuse("problems shots", "with --prompts")
        asked = [] if self.head is None else [read_head(one) for one in command.words(self.head)]
        texts, source = self._read_prompts()
        own = answer_settings(self.model) if models.is_bundled(self.model) and "length" not in self.sampler else {}
        settings = {**own, **self.sampler}
        if len(texts) < roles.LEAST:
            wanted = f"expected at least {roles.LEAST} prompts, half of them to judge the heads"
            raise CallError(f"{wanted}, found {len(texts)}")
        if self.dry_run:
            return self._print_cost(texts, settings)
        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        for layer, head in asked:
            if not (layer < model.card.layers and head < model.card.heads):
                most = f"{model.card.layers - 1}.{model.card.heads - 1}"
                raise CallError(f"--head {layer}.{head}: expected a layer and a head of {self.model}, 0.0 to {most}")
        how = {"canvases": self.canvases, "rows": self.rows, "control_seed": self.control_seed}
        with show_stages(self.model) as report:
            found = sinkscope.find_roles(model, texts, out=self.out, on_progress=report, **how, **settings)
        found = replace(found, source=source)
        for number, why in found.failed.items():
            note(f"prompt {number} is left out: {why}")
        found.save(self.out)  # type: ignore[arg-type]  # only a dry run has none
        if self.json:
            return print_json(found.as_dict())
        told = [evidence(found, *one) for one in asked]
        say(heading(found), *told, sep="\n\n", end="\n" if told else "\n\n")
        if not told:
            print_roles(found)

    def _print_cost(self, texts: Sequence[str], settings: Mapping[str, Any]) -> None:
        from sinkscope.evaluation.cost import card_of, estimate_passes, text_tokens
        from sinkscope.evaluation.task_plans import family_and_shape
        from sinkscope.lab.prompts import task_of

        family, shape = family_and_shape(self.model)
        how = (family, (shape.layers, shape.heads), len(texts), self.canvases, self.rows)
        calls = roles.cost_of_roles(*how, **settings)
        length, card = decoding.resolve_settings(family, **settings).length, card_of(self.gpu, self.tflops)
        if (self.device, self.gpu, self.tflops) == ("cpu", None, None):
            card = this_cpu()
        elif self.dtype == "float32" and self.tflops is None:
            card = replace(card, tflops=card.tflops / 16)  # an A100 does 312 TFLOP/s in bfloat16 and 19.5 in float32
        own, given = text_tokens(task_of(self.model), self.shots), round(sum(map(len, texts)) / len(texts) / 4)
        tokens = own if self.prompts is None else given
        canvas, writing = tokens + length, calls["generation"]
        written = len(texts) if family.causal else writing
        parts = (
            estimate_passes(shape, canvas, length, written, writing, 1, card),
            # half of the layers, but all predictions
            estimate_passes(shape, canvas, 2 * length, calls["passes"], calls["forwards"] - writing, self.rows, card),
        )
        seconds = 3600 * sum(part.gpu_hours for part in parts)
        found = {**calls, "seconds": seconds, "card": card.name, "tflops": card.tflops, "prompt_tokens": tokens}
        if self.json:
            return print_json({**found, "settings": dict(settings)})
        time = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
        say(f"at most {time} on {card.name} in {self.dtype} ({1000 * card.tflops:,.3g} GFLOP/s),")
        say(f"if all {counted(calls['heads'], 'head')} have a sink: {calls['forwards']:,} forward calls,")
        say(f"  {writing:,} to write answers to prompts of about {tokens:,} tokens")
        say(f"  {calls['rows']:,} canvases, in batches of {self.rows}, to take each head's sink away")

    def _read_prompts(self) -> tuple[list[str], dict[str, str | int]]:
        """Return the prompts and their source, which is stored with the roles."""
        from sinkscope.lab.prompts import problem_prompts, task_of

        if self.prompts is not None:
            return read_prompts(self.prompts), {"file": self.prompts.name}
        task = task_of(self.model)
        texts = [row["prompt"] for row in problem_prompts(task, self.problems, self.shots)]
        return texts, {"task": task, "shots": self.shots}


def heading(found: Any) -> str:
    """Return how many sinks can go alone, what hiding many together costs, the model, and how it was measured."""
    from sinkscope.sinks.definition import RULE_TEXTS

    free, said = found.count("dispensable"), ""
    for name, which in (("idle", f"all {found.count('idle')} idle ones"), ("dispensable", f"these {free}")):
        if not said and name in found.together:
            said = f"; {which} together cost {found.together[name]['kl.sink'].mean:.3g} nats"
    shown = [name for name in ("length", "steps", "block", "canvases") if name in found.settings]
    used = ", ".join([*(f"{name} {found.settings[name]}" for name in shown), *filter(None, [found.dtype])])
    tokens = " to ".join(map(str, sorted({*(found.canvas_tokens or ())})))
    lines = (
        f"{free} of {counted(len(found.heads), 'sink')} can go singly{said}",
        f"{found.model}{f' ({used})' if used else ''}: {len(found.heads)} of {found.layers * found.heads_in_layer} "
        f"heads have a lasting sink (over {RULE_TEXTS[found.rule]}, ε = {found.rules.excess:g})",
        f"chosen on {counted(found.prompts - found.judged - len(found.failed), 'prompt')}, judged on {found.judged} "
        f"others{found.from_where}{f', canvases of {tokens} tokens' if tokens else ''}",
    )
    return "\n".join(fill(line, WIDTH, subsequent_indent="  ") for line in lines)


def print_roles(found: Any) -> None:
    """Print what each class costs together, a line for each head, why heads are undecided, and what it all means."""
    rows = []
    for name in (*roles.NEEDS, *roles.ROLES):
        known = found.together.get(name, {})
        costs = [_in_words(known.get(f"kl.{rule}"), 3) for rule in ("sink", "sink.zero", "rowmass")]
        rows.append((name, str(found.count(name)), costs[0], *(one.partition(" (")[0] for one in costs[1:])))
    print_table(("class", "heads", "hidden together", "zeroed together", "control hidden"), rows, ("class",))
    say("in nats; other sets of heads were not tried\n")
    rows, remarks = [], dict[str, list[str]]()
    for one in found.ordered:
        place, unmatched = f"{one.layer}.{one.head}", _unmatched(one)
        taken = "/".join(_shown(_mean(one, f"taken.{name}"), 100, 0.995) for name in ("sink", "rowmass"))
        adds, hidden, others = (_shown(_mean(one, f"kl.{name}")) for name in ("sink.zero", "sink", "rowmass"))
        if (known := one.measured.get("kl.sink")) is not None and known.low is not None:
            hidden += f" {_shown(known.low)}–{_shown(known.high)}"
        numbers = (taken + "!" * unmatched, adds, hidden, others, one.to_hide)
        rows.append((place, one.verdict, cut(one.sink, 8), *numbers))
        if one.role == "undecided":
            remarks.setdefault(f"undecided {{}}: {one.reason}", []).append(place)
        if unmatched:
            remarks.setdefault(f"! {{}}: {UNMATCHED}", []).append(place)
    print_table(tuple(COLUMNS), rows, ("head", "verdict", "token"))
    meanings = [f"{name:>8}  {meaning}" for name, meaning in COLUMNS.items() if meaning]
    for text in (*(text.format(", ".join(mine)) for text, mine in remarks.items()), "", *meanings):
        say(fill(text, WIDTH, subsequent_indent=" " * 10 if text in meanings else "  "))


def evidence(found: Any, layer: int, head: int) -> str:
    """Return all measurements of one head, in words; raise CallError for one without a lasting sink."""
    one = found.of_head(layer, head)
    if one is None:
        known = ", ".join(f"{one.layer}.{one.head}" for one in found.heads)
        expected = f"such as {known}" if known else "found none in this model; leave --head out"
        raise CallError(f"--head {layer}.{head}: expected a head with a lasting sink, {expected}")
    where = f"at {_shown(one.place, 100, 0)} % of the canvas, in {_shown(one.lasting, 100, 0)} % of the canvases"
    lines = [f"head {layer}.{head} is {one.verdict}: {one.reason}", f"  its sink: most often {one.sink}, {where}"]
    for name, text in MEASURED.items():
        if name in one.measured:
            digits, factor = 4 if name.startswith("kl.") else 2, 100 if text.endswith("%") else 1
            kept = f", {_shown(_mean(one, f'kept{name[2:]}'), 100, 0)} % keep" if name.startswith("kl.") else ""
            lines.append(f"  {text}: {_in_words(one.measured[name], digits, factor)}{kept}")
    goes = [f"{word} {_shown(_mean(one, name), 100, 0)} %" for name, word in GOES.items() if name in one.measured]
    lines += [f"  {UNMATCHED}"] * _unmatched(one)
    lines += [f"  hidden, its attention goes to: {', '.join(goes)}"]
    lines += [f"  columns to hide until the predictions change by {found.rules.changed:g} nats: {one.to_hide}"]
    return "\n".join(fill(line, WIDTH, subsequent_indent="    ") for line in lines)


def this_cpu() -> Any:
    """Return the speed of this machine's processor, from a product of matrices."""
    import torch

    from sinkscope.evaluation.cost import Card

    left, right, times = torch.rand(512, 1024), torch.rand(1024, 1024), list[float]()
    for _ in range(9):
        start = perf_counter()
        left.matmul(right)
        times.append(perf_counter() - start)
    reached = 0.8 * 2 * left.numel() * 1024 / min(times) / 1e12  # the rest of a layer takes a fifth
    return Card(f"this CPU ({counted(torch.get_num_threads(), 'thread')})", 0, reached, 1e10)


def read_head(text: str) -> tuple[int, int]:
    """Return layer and head of a text such as ``4.2``."""
    try:
        layer, head = map(int, text.split("."))
    except ValueError as error:
        raise CallError(f"--head: expected LAYER.HEAD, such as 4.2, found {text!r}") from error
    return layer, head


def _mean(one: Any, name: str) -> float | None:
    return one.measured[name].mean if name in one.measured else None


def _shown(value: float | None, factor: float = 1000, small: float = 9.95) -> str:
    """Return a number times a factor, with a digit behind the point below ``small``."""
    return "–" if value is None else f"{factor * value:.{factor * value < small:d}f}"


def _unmatched(one: Any) -> bool:
    sink, control = (_mean(one, f"taken.{name}") for name in ("sink", "rowmass"))
    return sink is not None and control is not None and control < MATCHED * sink


def _in_words(estimate: Any, digits: int, factor: float = 1.0) -> str:
    if estimate is None or estimate.mean is None:
        return "–"
    mean, *ends = ("" if one is None else f"{factor * one:.{digits}f}" for one in vars(estimate).values())
    return f"{mean} ({' to '.join(ends)})" if all(ends) else mean
