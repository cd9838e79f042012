"""`reproduce`: makes a paper's tables and figures in one command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from sinkscope.commands.command import Command, Device, Dtype, Gpu, Json, Switch, TaskFiles, Tflops, default_is
from sinkscope.commands.output import note, print_costs, print_json
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
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
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.commands.reproduction import Options, reproduce
        from sinkscope.evaluation.tasks import read_data_flags

        if self.paper == "paper2":
            self.refuse("ks seeds controls traces", "for paper2")
        parts, data = self._parts(), read_data_flags(self.data)
        if self.dry_run:
            print_costs(parts, self.gpu, self.tflops, self.json)
            return
        if self.out is None:
            raise CallError("expected --out FOLDER, or --dry-run")
        written = reproduce(
            parts, Options(self.out, data, self.batch, self.device, self.dtype, self.allow_code_execution), note
        )
        if self.json:
            print_json({"files": [str(path) for path in written]})
        else:
            for path in written:
                print(path)

    def _parts(self) -> Any:
        """Return the paper's work as the flags narrow it."""
        from sinkscope.evaluation.papers.paper import Narrowing, find_paper

        try:
            ks = [int(k) for k in _words(self.ks)]
        except ValueError as error:
            raise CallError(f"--ks: expected whole numbers separated by commas, found {self.ks!r}") from error
        controls = [] if self.controls.strip() == "none" else _words(self.controls)
        asked = Narrowing(self.models, self.limit, ks, self.seeds, controls, self.traces)
        return find_paper(self.paper).plan(asked)


def _words(text: str) -> list[str]:
    """Return the words of a text, separated by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
