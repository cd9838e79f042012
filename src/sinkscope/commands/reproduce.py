"""`reproduce`: makes a paper's tables and figures in one command."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from sinkscope.commands.bounds import Few, Shots
from sinkscope.commands.command import Command, Device, Dtype, Gpu, Json, Switch, TaskFiles, Tflops, default_is
from sinkscope.commands.output import note, print_costs, print_json
from sinkscope.commands.task_command import check_planned
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
    """Make every table and figure of a paper from named checkpoints; the same command resumes after a kill.

    Attributes:
        paper: paper1 is arXiv 2510.15731, Attention Sinks in Diffusion Language Models; paper2 is arXiv 2601.19657, One Token Is Enough
            (its Tables 1 and 2; without ks, seeds, controls and traces).
        out: folder for all results.
        models: published, lab, or names separated by commas; for paper2 NAME=FOLDER separated by commas, or published in a dry run.
        dry_run: prints how many forward calls, how much memory and disk, and how many GPU hours each part takes, and runs nothing.
        limit: number of problems of each task.
        ks: how many sinks are hidden, separated by commas.
        seeds: number of seeds of each control that draws at random.
        controls: rules that hide other keys for comparison: none, or some of random, ranks, mass, rowmass, persistent, class.
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
    seeds: Shots = 3
    controls: str = "random,ranks"
    traces: Few = 30
    data: TaskFiles = ()
    batch: Few = 8
    allow_code_execution: Switch = False
    device: Device = "cpu"
    dtype: Dtype = None
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.commands.reproduction import Options, reproduce
        from sinkscope.evaluation.tasks import PUBLISHED, read_data_flags

        for name, value, least in (("limit", self.limit, 1), ("traces", self.traces, 1), ("seeds", self.seeds, 0)):
            if value is not None and value < least:
                raise CallError(f"--{name}: expected a whole number from {least} upwards, found {value}")
        if self.paper == "paper2":
            self.refuse("ks seeds controls traces", "for paper2")
        if not self.dry_run:
            self.refuse("gpu tflops", "without --dry-run")
        parts, data = self._parts(), read_data_flags(self.data)
        asked = {part.task for part in parts}
        if unused := [name for name in data if name not in {*asked, *(PUBLISHED.get(task) for task in asked)}]:
            raise CallError(
                f"--data {unused[0]} is not used by these models, whose tasks are {', '.join(sorted(asked))}; leave it out"
            )
        if self.dry_run:
            check_planned(self.batch, self.device, self.dtype)
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

        ks = _words(self.ks)
        if not ks or not all(re.fullmatch("[1-9][0-9]{0,5}", k) for k in ks):
            raise CallError(f"--ks: expected whole numbers from 1 upwards, separated by commas, found {self.ks[:60]!r}")
        controls = [] if self.controls.strip() == "none" else _words(self.controls)
        asked = Narrowing(self.models, self.limit, [int(k) for k in ks], self.seeds, controls, self.traces)
        return find_paper(self.paper).plan(asked)


def _words(text: str) -> list[str]:
    """Return the words of a text, separated by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
