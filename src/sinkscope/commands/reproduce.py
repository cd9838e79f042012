"""`reproduce`: makes a paper's tables and figures in one command."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from sinkscope.commands.command import Command, Device, Dtype, Json, Switch, TaskFiles, default_is
from sinkscope.commands.output import note, print_json
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
    """Make every table and figure of a paper from named checkpoints; the same command resumes after a kill.

    Attributes:
        paper: paper1 is arXiv 2510.15731, Attention Sinks in Diffusion Language Models; paper2 is arXiv 2601.19657, One Token Is Enough
            (its Tables 1 and 2; it ignores ks, seeds, controls and traces).
        out: folder for all results.
        models: published, lab, or names separated by commas; for paper2 NAME=FOLDER separated by commas, or published in a dry run.
        dry_run: prints how many forward calls, how much memory and disk, and how many GPU hours each part takes, and runs nothing.
        limit: number of problems of each task.
        ks: how many sinks are hidden, separated by commas.
        seeds: number of seeds of each control that draws at random.
        controls: rules that hide other keys for comparison: some of random, ranks, mass, rowmass, persistent, class.
        traces: number of recorded generations of each model.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that models write, in a sandbox; without it those tasks are left out.
        tflops: speed of your card in 10¹² operations a second, for the dry run.
    """

    paper: Positional[Literal["paper1", "paper2"]]
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    models: str = "published"
    dry_run: Switch = False
    limit: Annotated[int | None, default_is("all")] = None
    ks: str = "1,5,10"
    seeds: int = 3
    controls: str = "random,ranks"
    traces: int = 30
    data: TaskFiles = ()
    batch: int = 8
    allow_code_execution: Switch = False
    device: Device = "cpu"
    dtype: Dtype = None
    tflops: float = 125.0
    json: Json = False

    def run(self) -> None:
        from sinkscope.commands.reproduction import Options, reproduce
        from sinkscope.evaluation.tasks import read_data_flags

        if (self.limit is not None and self.limit < 1) or self.traces < 1 or self.seeds < 0:
            raise CallError(
                f"expected --limit and --traces from 1, --seeds from 0 upwards, found {self.limit}, {self.traces}, {self.seeds}"
            )
        parts, data = self._parts(), read_data_flags(self.data)
        if self.dry_run:
            costs = _costs(parts, self.tflops)
            if self.json:
                print_json(costs)
            else:
                print(_show_costs(costs))
            return
        if self.out is None:
            raise CallError("expected --out FOLDER, or --dry-run")
        written = reproduce(parts, Options(self.out, data, self.batch, self.device, self.dtype, self.allow_code_execution), note)
        if self.json:
            print_json({"files": [str(path) for path in written]})
        else:
            for path in written:
                print(path)

    def _parts(self) -> Any:
        """Return the paper's work as the flags narrow it."""
        from sinkscope.evaluation.papers.paper import Narrowing, find_paper

        ks = _words(self.ks)
        if not all(k.isdigit() and int(k) for k in ks):
            raise CallError(f"--ks: expected whole numbers from 1 upwards, separated by commas, found {self.ks!r}")
        asked = Narrowing(self.models, self.limit, [int(k) for k in ks], self.seeds, _words(self.controls), self.traces)
        return find_paper(self.paper).plan(asked)


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _costs(parts: Sequence[Any], tflops: float) -> dict[str, Any]:
    """Return what the parts cost, in plain values: a row each, their sum, and what the estimate assumes."""
    from sinkscope.evaluation.papers.cost import ASSUMPTIONS, CARD_GIB, estimate

    costs = [estimate(part, tflops) for part in parts]
    rows = [
        {"part": part.name, "model": part.model, "task": part.task, "prompts": part.prompts, "rules": len(part.rules)} | asdict(cost)
        for part, cost in zip(parts, costs, strict=True)
    ]
    total = {
        "forwards": sum(cost.forwards for cost in costs),
        "gpu_hours": sum(cost.gpu_hours for cost in costs),
        "memory_gib": max((cost.memory_gib for cost in costs), default=0.0),
        "disk_gib": sum(cost.disk_gib for cost in costs),
    }
    suffices = all(cost.batch_on_card >= 1 for cost in costs)
    return {"parts": rows, "total": total, "card_gib": CARD_GIB, "card_suffices": suffices, "assumptions": list(ASSUMPTIONS)}


def _show_costs(found: Mapping[str, Any]) -> str:
    """Return costs as a Markdown table with its sums."""
    lines = [
        "| part | model | task | prompts | rules | forwards | GPU hours | memory, GiB | batch on 24 GB | disk, GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["parts"]:
        lines.append(
            f"| {row['part']} | {row['model']} | {row['task']} | {row['prompts']} | {row['rules']} | {row['forwards']:,} "
            f"| {row['gpu_hours']:.2f} | {row['memory_gib']:.2f} | {row['batch_on_card']} | {row['disk_gib']:.2f} |"
        )
    total = found["total"]
    lines.append(
        f"| all | | | | | {total['forwards']:,} | {total['gpu_hours']:.2f} | {total['memory_gib']:.2f} | | {total['disk_gib']:.2f} |"
    )
    most = min((row["batch_on_card"] for row in found["parts"]), default=0)
    enough = f"suffices for every part, with --batch {most} or less; each part's own limit is in its row"
    answer = enough if found["card_suffices"] else "does not suffice for the parts with a batch of 0"
    return "\n".join([*lines, "", f"A card of {found['card_gib']} GB {answer}.", *(f"Assumed: {line}" for line in found["assumptions"])])
