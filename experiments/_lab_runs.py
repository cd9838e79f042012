"""The runs from which the claims are measured: a model writes prompts in some way, and is traced and analysed once.

A run is a folder of numbered traces under `experiments/work` (or ``$SINKSCOPE_WORK``). Complete traces are not written again, so every
script goes on where a killed one stopped, and all of them share the traces and the analyses.

Command   python experiments/_lab_runs.py [--prompts 48] [--runs NAME…]
Cost      per prompt and run about 4 s of one core and 19 MB for the diffusion model, 1 s and 1 MB for the autoregressive one.
"""

import argparse
import json
import os
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import sinkscope
from sinkscope.errors import SinkscopeError
from sinkscope.lab.prompts import held_out, problem_prompt, problem_prompts
from sinkscope.lab.recipes import SHORT
from sinkscope.statistics import Analysis, Estimate, analyse
from sinkscope.traces import Trace, open_trace

WORK = Path(os.environ.get("SINKSCOPE_WORK", Path(__file__).parent / "work"))
PROMPTS = 48
LEAST_TOKENS = 200


@dataclass(frozen=True, eq=False)
class Run:
    """One way to write.

    Attributes:
        model: bundled name.
        hide: rule of hiding in force while it writes.
        short: a problem without shots instead of a prompt of 200 tokens and more.
    """

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    hide: str = "none"
    short: bool = False

    @property
    def command(self) -> str:
        """The same on the command line."""
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())
        hiding = "" if self.hide == "none" else f" --hide {self.hide}"
        return f"sinkscope trace {self.model.removeprefix(f'{WORK}/')} --prompts prompts.jsonl {flags}{hiding} --out {self.name}"


DIFFUSION = {"length": 64, "steps": 64}
RUNS = {
    run.name: run
    for run in (
        Run("blocks-of-16", "lab-diffusion", {**DIFFUSION, "block": 16}),
        Run("one-block", "lab-diffusion", {**DIFFUSION, "block": 64}),
        Run("blocks-reversed", "lab-diffusion", {**DIFFUSION, "block": 16, "block_order": "right_to_left"}),
        Run("autoregressive", "lab-autoregressive", {"length": 64}),
    )
}


@cache
def load(name: str) -> Any:
    """Load a model, once."""
    return sinkscope.load(name)


@cache
def problems(count: int) -> tuple[dict[str, str], ...]:
    """Return the first held-out problems whose prompt with 5 shots has at least 200 tokens."""
    model, found = load("lab-diffusion"), []
    for row in problem_prompts("lab-arith", 2 * count):
        if len(model.encode(row["prompt"])) >= LEAST_TOKENS:
            found.append(row)
    return tuple(found[:count])


@cache
def short_problems(count: int) -> tuple[dict[str, str], ...]:
    """Return the first held-out problems that the small twins can solve, without shots: the twins know canvases up to 96 tokens."""
    asked = [number for number, problem in enumerate(held_out("lab-arith")) if problem.template in SHORT.templates]
    return tuple(problem_prompt("lab-arith", number, 0) for number in asked[:count])


def trace(run: Run, number: int) -> Trace:
    """Return the trace of one prompt; write it first where it is missing."""
    folder = WORK / run.name / f"{number:06d}"
    if not _whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        model, problem = load(run.model), (short_problems if run.short else problems)(number + 1)[number]
        with sinkscope.parse_rule(run.hide)(model), sinkscope.recording(model, out=folder):
            sinkscope.generate(model, problem["prompt"], **run.settings)
    return open_trace(folder)


def _whole(folder: Path) -> bool:
    try:
        return folder.exists() and open_trace(folder).complete
    except SinkscopeError:
        return False


@cache
def analysis(run: Run, prompts: int) -> Analysis:
    """Return all statistics of a run at ten thresholds; they are kept beside the traces."""
    path = WORK / run.name / f"analysis-{prompts}.json"
    if not path.exists():
        found = analyse([trace(run, number) for number in range(prompts)])
        written = {name: getattr(found, name) for name in ("prompts", "layers", "heads", "tolerance", "prompt_texts", "keys")}
        rows = [one.as_dict() for one in found.statistics]
        beside = path.with_suffix(".writing")
        beside.write_text(json.dumps({**written, "statistics": rows, "values": found.values.tolist()}))
        beside.replace(path)
    read = json.loads(path.read_text())
    statistics = tuple(
        Estimate(row["name"], row["at"], row["value"], row["low"], row["high"], row["prompts"], row.get("p")) for row in read["statistics"]
    )
    keys = tuple((name, tuple((axis, value) for axis, value in place)) for name, place in read["keys"])
    values = np.array(read["values"], dtype=np.float64)
    return Analysis(
        statistics, read["prompts"], read["layers"], read["heads"], read["tolerance"], tuple(read["prompt_texts"]), keys, values
    )


def main() -> None:
    """Write traces prompt by prompt, so that the runs can be compared even after a kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=RUNS)
    arguments = parser.parse_args()
    for number in range(arguments.prompts):
        for name in arguments.runs:
            trace(RUNS[name], number)
        print(f"{number + 1} of {arguments.prompts} prompts", flush=True)


if __name__ == "__main__":
    main()
