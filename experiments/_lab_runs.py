"""The runs from which the claims are measured: a model writes prompts in some way, and is traced and analysed once.

A run writes the same problems behind 0, 1, 2 and 5 solved ones (*shots*), so that each claim is told at four lengths of
the prompt. Its traces are numbered folders under `experiments/work` (or ``$SINKSCOPE_WORK``), one folder for each
number of shots. Complete traces are not written again, so every script goes on where a killed one stopped, and all of
them share the traces and the analyses.

Command   python experiments/_lab_runs.py [--prompts 48] [--runs NAME…]
Cost      on one core, per prompt and run of the diffusion model, 0.7 s and 5 MB without shots, 2 s and 19 MB behind
          five; 0.2 s and 2 MB of the autoregressive one. All runs of 48 prompts: 9 minutes, 4 GB.
"""

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _nulls import Kind, Shuffled
from _settings import Arguments, run_script

import sinkscope
from sinkscope.errors import SinkscopeError
from sinkscope.lab.prompts import few_shot_prompt, held_out, problem_prompt
from sinkscope.sinks import averaged_moves
from sinkscope.statistics import Analysis, Estimate, Threshold, analyse
from sinkscope.traces import Trace, open_trace

WORK = Path(os.environ.get("SINKSCOPE_WORK", Path(__file__).parent / "work"))
PROMPTS = 48
MAIN = Threshold(3.0, "queries")
THRESHOLDS = (MAIN, Threshold(1.0, "queries"), Threshold(8.0, "queries"), Threshold(5.0, "percent"))
SHOTS = (0, 1, 2, 5)
# 47 and 64 % of the redrawn diffusion model's heads have a sink then, 0 and 5 shots; 50 and 83 % of the trained one's.
# SmolLM2's sibling needs no scale: 79 and 88 % on one canvas, 70 and 82 % of the trained one's.
SCALE = 2.5
LEAST_TOKENS = 200  # behind five shots; two of the 1,319 problems have fewer


@dataclass(frozen=True, eq=False)
class Run:
    """One way to write.

    Attributes:
        model: bundled name.
        shots: how many solved problems stand before a problem; the run is repeated for each number.
        hide: rule of hiding in force while it writes.
        templates: kinds of problems that are asked; all when empty.
        redrawn: the model learnt nothing; scale: of its queries and keys, see `load`.
    """

    name: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    shots: tuple[int, ...] = SHOTS
    hide: str = "none"
    templates: tuple[str, ...] = ()
    redrawn: bool = False
    scale: float = SCALE

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
        Run("blocks-reversed", "lab-diffusion", {**DIFFUSION, "block": 16, "block_order": "right_to_left"}),
        Run("autoregressive", "lab-autoregressive", {"length": 64}),
    )
}


def use_pair() -> None:
    """Put SmolLM2 and its diffusion sibling, which has no blocks, in the place of the lab's models."""
    del RUNS["blocks-reversed"]
    RUNS["blocks-of-16"] = Run("smollm2-diffusion", "smollm2-diffusion", DIFFUSION, scale=1.0)
    RUNS["autoregressive"] = Run("smollm2", "smollm2", {"length": 64}, scale=1.0)


AVERAGED = (1, 2, 4, 8, 16, 32)  # queries, as far as steps reach; a diffusion model's step is its whole canvas


@cache
def load(name: str, redrawn: bool = False, scale: float = SCALE) -> Any:
    """Load a model, once; ``redrawn``: the entries of each weight shuffled, those of queries and keys times
    ``scale``. SmolLM2 and its sibling compute in fp32.
    """
    folder = WORK / "models" / f"redrawn-{Path(name).name}-{scale:g}"
    precision = {} if name.startswith("lab-") else {"dtype": torch.float32}
    if redrawn and not folder.exists():
        model = sinkscope.load(name, **precision)
        torch.manual_seed(0)
        with torch.no_grad():
            for part, weight in model.network.named_parameters():
                weight.copy_(weight.flatten()[torch.randperm(weight.numel())].view_as(weight))
                weight.mul_(scale if "q_proj" in part or "k_proj" in part else 1)
        model.network.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
    return sinkscope.load(folder if redrawn else name, **precision)


@cache
def untrained(run: Run) -> Run:
    """Return the run of the same prompts by the redrawn network."""
    return replace(run, name=f"redrawn-{run.name}", redrawn=True)


@cache
def problems(templates: tuple[str, ...] = ()) -> tuple[int, ...]:
    """Return the numbers of the held-out problems of these templates (all when empty) whose prompt behind five shots is
    long enough.
    """
    model, asked = load("lab-diffusion"), enumerate(held_out("lab-arith"))
    long = {
        number: problem
        for number, problem in asked
        if len(model.encode(few_shot_prompt(problem, number, max(SHOTS)))) >= LEAST_TOKENS
    }
    return tuple(number for number, problem in long.items() if not templates or problem.template in templates)


def folder_of(run: Run, shots: int) -> Path:
    """Return where the traces of a run with so many shots lie."""
    return WORK / run.name / f"{shots}-shots"


def trace(run: Run, shots: int, number: int) -> Trace:
    """Return the trace of one prompt; write it first where it is missing."""
    folder = folder_of(run, shots) / f"{number:06d}"
    if not _whole(folder):
        shutil.rmtree(folder, ignore_errors=True)
        prompt = problem_prompt("lab-arith", problems(run.templates)[number], shots)["prompt"]
        model = load(run.model, run.redrawn, run.scale)
        with sinkscope.parse_rule(run.hide)(model), sinkscope.recording(model, out=folder):
            sinkscope.generate(model, prompt, **run.settings)
    return open_trace(folder)


def _whole(folder: Path) -> bool:
    try:
        return folder.exists() and open_trace(folder).complete
    except SinkscopeError:
        return False


@cache
def analysis(run: Run, shots: int, prompts: int, shuffled: Kind | None = None) -> Analysis:
    """Return all statistics of a run with so many shots, at four thresholds, of shuffled attention if asked; they are
    kept beside the traces. Moves at equal shares of so many queries (`averaged_moves`) are among them.
    """
    path = folder_of(run, shots) / f"analysis-{prompts}{(shuffled and '-' + shuffled) or ''}.json"
    if not path.exists():
        traces = [trace(run, shots, number) for number in range(prompts)]
        if shuffled:
            traces = [Shuffled(one, shuffled, number, load(run.model)) for number, one in enumerate(traces)]
        found = analyse(traces, THRESHOLDS)
        written = {
            name: getattr(found, name) for name in ("prompts", "layers", "heads", "tolerance", "prompt_texts", "keys")
        }
        moves = [
            {one.queries if one.queries in AVERAGED else "canvas": one.moves_per_head for one in averaged_moves(each)}
            for each in traces
        ]
        averaged = [*AVERAGED, "canvas"]
        written["keys"] = [*found.keys, *(("averaged.moves_per_head", (("queries", one),)) for one in averaged)]
        rows = [one.as_dict() for one in found.statistics]
        values = [[*row, *map(one.get, averaged)] for row, one in zip(found.values.tolist(), moves, strict=True)]
        beside = path.with_suffix(".writing")
        beside.write_text(json.dumps({**written, "statistics": rows, "values": values}))
        beside.replace(path)
    read = json.loads(path.read_text())
    statistics = tuple(
        Estimate(row["name"], row["at"], row["value"], row["low"], row["high"], row["prompts"], row.get("p"))
        for row in read["statistics"]
    )
    keys = tuple((name, tuple((axis, value) for axis, value in place)) for name, place in read["keys"])
    values = np.array(read["values"], dtype=np.float64)
    return Analysis(
        statistics,
        read["prompts"],
        read["layers"],
        read["heads"],
        read["tolerance"],
        tuple(read["prompt_texts"]),
        keys,
        values,
    )


def main() -> None:
    """Write traces prompt by prompt, so that the runs can be compared even after a kill."""
    parser = Arguments(__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=RUNS)
    arguments = parser.parse_args()
    for number in range(arguments.prompts):
        for name in arguments.runs:
            for shots in RUNS[name].shots:
                trace(RUNS[name], shots, number)
        print(f"{number + 1} of {arguments.prompts} prompts", flush=True)


if __name__ == "__main__":
    run_script(main)
