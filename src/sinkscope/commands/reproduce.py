"""`reproduce`: makes the tables and figures of a paper in one command, from `evaluation.protocols`.

table1.md, .tex, .csv, .json     paper 1: accuracy with sinks hidden, intervals, tests, controls, published numbers
table2.md, .json, figures/       paper 1: the tokens that are sinks most often; from the recorded generations
paper2.md                        paper 2: measured accuracies beside the published ones
evaluations/, traces/            the results behind them; a later run goes on from these
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

import sinkscope
from sinkscope import decoding
from sinkscope.commands import command
from sinkscope.commands.output import note, print_costs, print_json, say
from sinkscope.errors import EvaluationError
from sinkscope.runs.files import read_object, write_whole
from sinkscope.runs.folder import claimed_folder, share_of_process

TOP = 5  # tokens in a row of Table 2
EXCESS = 3.0  # ε of Eq. 3 in the figures and Table 2


@dataclass(frozen=True, kw_only=True)
class Reproduce(command.Command):
    """Make every table and figure of a paper from named checkpoints; the same command resumes after a kill.

    Attributes:
        paper: paper1 is arXiv 2510.15731, Attention Sinks in Diffusion Language Models; paper2 is arXiv 2601.19657, One
            Token Is Enough (its Tables 1 and 2; without ks, seeds, controls and traces).
        out: folder for all results.
        models: published, lab, or names separated by commas; for paper2 NAME=FOLDER separated by commas, or published
            in a dry run.
        dry_run: prints how many forward calls, how much memory and disk, and how many GPU hours each part takes, and
            runs nothing.
        limit: number of problems of each task.
        ks: how many sinks are hidden, separated by commas.
        seeds: number of seeds of each control that draws at random.
        controls: rules that hide other keys for comparison: none, or some of random, ranks, mass, rowmass, persistent,
            class.
        traces: number of recorded generations of each model.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that models write, in a sandbox; without it those tasks are left out.
    """

    paper: Positional[Literal["paper1", "paper2"]]
    out: Annotated[Path | None, command.default_is("none, which only a dry run allows")] = None
    models: str = "published"
    dry_run: command.Switch = False
    limit: Annotated[int | None, command.default_is("all")] = None
    ks: str = "1,5,10"
    seeds: int = 3
    controls: str = "random,ranks"
    traces: int = 30
    data: command.TaskFiles = ()
    batch: int = 8
    allow_code_execution: command.Switch = False
    device: command.Device = "cpu"
    dtype: command.Dtype = None
    gpu: command.Gpu = None
    tflops: command.Tflops = None
    json: command.Json = False

    def run(self) -> None:
        from sinkscope.evaluation.protocols import LAB, PUBLISHED, paper1, paper2

        if self.paper == "paper2":
            self.refuse("ks seeds controls traces", "for paper2")
            parts = paper2(self.models, limit=self.limit)
        else:
            models = {"published": PUBLISHED, "lab": LAB}.get(self.models) or command.words(self.models)
            ks, controls = list(map(int, command.words(self.ks))), command.words(self.controls.replace("none", ""))
            parts = paper1(models, ks=ks, seeds=self.seeds, controls=controls, limit=self.limit, traces=self.traces)
        if self.dry_run:
            return print_costs(parts, self.gpu, self.tflops, self.json)
        command.expect_out(self.out)
        files = list(map(str, self.work(parts)))
        return print_json({"files": files}) if self.json else say(*files, sep="\n")

    def work(self, parts: Sequence[Any]) -> list[Path]:
        """Run the unfinished parts, model by model; return the files written, by the first process of torchrun."""
        from sinkscope.evaluation.protocols import beside_paper2, check_folder
        from sinkscope.evaluation.task_plans import data_of
        from sinkscope.evaluation.tasks import find_task, read_data_flags
        from sinkscope.models.devices import own_device

        first, data = share_of_process().index == 0, read_data_flags(self.data)
        results, traces = dict[str, list[Any]](), dict[str, list[Any]]()
        assert self.out is not None  # `run` refuses it
        for name, folder in {part.model: part.folder for part in parts}.items():  # before any is loaded
            check_folder(name, folder) if self.paper == "paper2" else None
        with claimed_folder(self.out, EvaluationError) if first else nullcontext():
            for name in dict.fromkeys(part.model for part in parts):
                mine, place = [part for part in parts if part.model == name], name.replace("/", "--")
                model = sinkscope.load(mine[0].folder or name, dtype=self.dtype, device=own_device(self.device))
                if (found := model.card.hidden_size) != mine[0].shape.hidden:
                    note(f"{name}: its width is {found}, {mine[0].shape.hidden} in the paper; it is another checkpoint")
                for part in mine:
                    task = find_task(part.task, data)
                    if part.recorded:
                        traces |= {name: _record(model, part, task, self.out / "traces" / place)} if first else {}
                    elif task.runs_programs and not self.allow_code_execution:
                        note(f"{name}, {part.task}: left out; it runs programs, which needs --allow-code-execution")
                    else:
                        request = {"tasks": [part.task], "hide": part.rules, "data": data_of(part.task, data)}
                        request |= {"limit": part.prompts, "shots": part.shots, "settings": part.settings}
                        how = {"batch": self.batch, "allow_code_execution": self.allow_code_execution}
                        out = self.out / "evaluations" / place / part.task
                        results.setdefault(name, []).extend(sinkscope.evaluate(model, out=out, **request, **how))
            if not first:
                return []
            if self.paper == "paper2":
                return _written({self.out / "paper2.md": beside_paper2(results)})
            rows = [one for found in results.values() for one in found]
            forms: dict[str, Any] = {"md": "markdown", "tex": "latex", "csv": "csv", "json": "json"} if rows else {}
            tables = {
                self.out / f"table1.{end}": sinkscope.evaluation.write_table(rows, form) for end, form in forms.items()
            }
            return [*_written(tables), *(_draw(traces, self.out) if any(traces.values()) else ())]


def _record(model: Any, part: Any, task: Any, out: Path) -> list[Any]:
    """Record a part, one folder a prompt, and return its traces; those of an equal run are kept."""
    settings, traces = decoding.described(decoding.resolve_settings(model.family, **part.settings)), []
    card = {name: getattr(model.card, name) for name in ("weight_hash", "config_hash", "dtype")}
    for index, problem in enumerate(task.problems()[: part.prompts]):
        folder, stamp = out / f"{index:06d}", out / f"{index:06d}.json"
        wanted = {**card, "prompt": task.prompt(problem, index, part.shots), "settings": settings}
        if read_object(stamp) != wanted:
            if (folder / "manifest.json").exists():
                shutil.rmtree(folder)  # an earlier run of this command wrote it, was cut short or had other settings
            with sinkscope.recording(model, out=folder):
                sinkscope.generate(model, wanted["prompt"], **settings)
            _written({stamp: json.dumps(wanted)})
            note(f"{part.model}: generation {index + 1} of {part.prompts} recorded")
        traces.append(sinkscope.open_trace(folder))
    return traces


def _draw(traces: Mapping[str, list[Any]], out: Path) -> list[Path]:
    from sinkscope.figures import draw_figures

    drawn = draw_figures([one[0] for one in traces.values()], out / "figures", excess=EXCESS, compare=True)
    found = {name: sink_tokens(mine, EXCESS) for name, mine in traces.items()}
    lines = [f"| model | generations | {' | '.join(f'{rank + 1}.' for rank in range(TOP))} |", "|---" * (TOP + 2) + "|"]
    for name, tokens in found.items():
        cells = [f"`{text!r}` {share:.3f}".replace("|", "\\|") for text, share in tokens.items()]
        cells = [name, str(len(traces[name])), *[*cells, *["–"] * TOP][:TOP]]
        lines.append(f"| {' | '.join(cells)} |")
    tables = {"table2.json": json.dumps(found, ensure_ascii=False), "table2.md": "\n".join(lines)}
    return [*drawn, *_written({out / name: text for name, text in tables.items()})]


def sink_tokens(traces: Sequence[Any], excess: float) -> dict[str, float]:
    """Return each token's share of all sinks over steps, layers, heads and traces, the most frequent token first."""
    tally: Counter[str] = Counter()
    for trace in traces:
        for token, count in Counter(sinkscope.find_sinks(trace, excess).token.tolist()).items():
            tally[trace.token_text(token)] += count
    return {text: count / tally.total() for text, count in tally.most_common()}


def _written(texts: Mapping[Path, str]) -> list[Path]:
    for path, text in texts.items():
        write_whole(path, f"{text}\n".encode(), EvaluationError, "make room and run the same command again")
    return list(texts)
