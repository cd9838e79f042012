"""`problems`, `evaluate`, `table`, `bench`: how good and how fast."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from sinkscope.commands.shown import Json, given_flags, note, print_json
from sinkscope.errors import CallError, SinkscopeError

Format = Literal["markdown", "latex", "csv", "json"]


def problems(task: str = "lab-arith", count: int = 10) -> None:
    """Held-out problems of the lab as JSON lines {"prompt", "answer"}.

    Args:
        task: lab-arith or lab-code.
        count: how many, from the first.
    """
    from sinkscope.lab.prompts import problem_prompts

    for row in problem_prompts(task, count):
        print_json(row)


def evaluate(
    model: Positional[str],
    out: Path,
    tasks: str = "lab-arith",
    hide: str = "none",
    limit: int | None = None,
    shots: int | None = None,
    chat: bool = False,
    protocol: str = "auto",
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    batch: int = 16,
    allow_code_execution: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    jobs: int = 0,
    cluster: Literal["slurm", "local"] = "slurm",
    job_options: str = "",
    method: Literal["monte_carlo", "chain_rule"] | None = None,
    samples: int | None = None,
    as_json: Json = False,
    sampler: Any = None,
) -> None:
    """Accuracy on tasks, with intervals; the same command goes on after a kill, torchrun and --jobs spread it.

    Args:
        model: a bundled name, a folder, or a hub id.
        out: folder for the results.
        tasks: separated by commas: lab-arith, lab-code, gsm8k, gsm8k_cot, gsm8k_two_pass, humaneval, humaneval_instruct, arc_easy,
            arc_challenge, hellaswag, piqa, race, social_iqa, lambada, lambada_openai.
        hide: rules separated by commas, none for the unchanged model: none,top:1@current,random:1@seed=2 …
        limit: problems of each task, from the first. (default: all)
        shots: solved problems in each prompt. (default: the protocol's or the task's own number)
        chat: prompts go through the chat template, where a protocol does not say so itself.
        protocol: published settings for published tasks: auto, none, or a name.
        data: TASK=PATH, a local JSON-lines file or folder of a published task; may be given several times.
        batch: prompts written side by side.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        device: cpu, cuda …; with torchrun, cuda is each process's own.
        dtype: float32, bfloat16 or float16. (default: the stored one)
        jobs: submits that many jobs and waits for them; 0 works here.
        cluster: where jobs run: slurm, or local processes.
        job_options: name=value separated by commas, for submitit: slurm_partition=gpu,gpus_per_node=1,timeout_min=600 … (default: none)
        sampler: settings of the model's sampler. (default: the protocol's or the task's, else the sampler's)
        method: how a diffusion model's likelihoods are estimated, in tasks that ask for them. (default: the protocol's, else monte_carlo)
        samples: masked canvases of Monte Carlo. (default: the protocol's, else the method's own)
    """
    from sinkscope.evaluation.jobs import run_in_jobs, run_share
    from sinkscope.evaluation.results import collect
    from sinkscope.evaluation.tables import write_table
    from sinkscope.evaluation.tasks import read_data_flags
    from sinkscope.interventions import split_rules

    names, rules = list(dict.fromkeys(part.strip() for part in tasks.split(",") if part.strip())), split_rules(hide)
    arguments = {
        "tasks": names,
        "out": out,
        "hide": rules,
        "limit": limit,
        "shots": shots,
        "chat": chat,
        "protocol": protocol,
        "data": read_data_flags(data),
        "batch": batch,
        "settings": given_flags(sampler) | {name: value for name, value in (("method", method), ("samples", samples)) if value is not None},
        "allow_code_execution": allow_code_execution,
    }
    if jobs:
        run_in_jobs(model, device, dtype, arguments, jobs, cluster, job_options)
        results = collect(out, [(task, rule) for task in names for rule in rules])
    else:
        results = run_share(model, device, dtype, arguments)
    if results:
        print(write_table(results, "json" if as_json else "markdown"))


def table(
    results: Positional[tuple[Path, ...]], form: Annotated[Format, tyro.conf.arg(name="format")] = "markdown", as_json: Json = False
) -> None:
    """Accuracies of one or several evaluations: paper 1's layout, intervals, paired tests, controls, verdicts.

    Args:
        results: folders that `sinkscope evaluate` wrote. (required)
        form: markdown, latex, csv or json.
    """
    from sinkscope.evaluation.results import read_results
    from sinkscope.evaluation.tables import write_table

    print(write_table(read_results(*results), "json" if as_json else form))


def bench(names: Positional[tuple[str, ...]] = (), as_json: Json = False) -> None:
    """Runs the measurements of benchmarks/ in a checkout, all or the named ones.

    Args:
        names: such as recording_overhead. (default: all)
    """
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    scripts = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
    if not scripts:
        raise SinkscopeError(f"no benchmarks at {folder}; `sinkscope bench` needs a checkout of the repository")
    unknown = [name for name in names if name not in scripts]
    if unknown:
        raise CallError(f"no benchmark {unknown[0]!r}; expected one of {', '.join(scripts)}")
    rows = {}
    for name in names or scripts:
        note(f"{name} …")
        done = subprocess.run(
            [sys.executable, scripts[name], *(["--json"] if as_json else [])], stdout=subprocess.PIPE if as_json else None
        )
        if done.returncode:
            raise SinkscopeError(f"{scripts[name].name} failed with status {done.returncode}")
        if as_json:
            rows[name] = json.loads(done.stdout)
    if as_json:
        print_json(rows)
