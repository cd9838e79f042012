"""`problems`, `evaluate`, `table`, `bench`: how good and how fast."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.shown import Json, given_flags, note, print_json
from sinkscope.errors import CallError, SinkscopeError


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
    batch: int = 16,
    allow_code_execution: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    as_json: Json = False,
    sampler: Any = None,
) -> None:
    """Scores a model on held-out tasks; the same command resumes.

    Args:
        model: a bundled name, a folder, or a hub id.
        out: folder for the results.
        tasks: separated by commas: lab-arith, lab-code.
        hide: rules separated by commas; so far only none.
        limit: problems of each task, from the first; all when not given.
        shots: solved problems in each prompt; the task's own number when not given.
        batch: prompts written side by side.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        device: cpu, cuda …
        dtype: float32, bfloat16 or float16.
    """
    import sinkscope
    from sinkscope.evaluation import evaluate as run
    from sinkscope.evaluation.results import markdown, table

    loaded = sinkscope.load(model, dtype=dtype, device=device)
    results = run(
        loaded,
        tasks=[one.strip() for one in tasks.split(",") if one.strip()],
        out=out,
        hide=[one.strip() for one in hide.split(",") if one.strip()],
        limit=limit,
        shots=shots,
        batch=batch,
        settings=given_flags(sampler),
        allow_code_execution=allow_code_execution,
    )
    if as_json:
        print_json(table(results))
    else:
        print(markdown(results))


def table(results: Positional[tuple[Path, ...]], as_json: Json = False) -> None:
    """Accuracies of one or several evaluations, with intervals.

    Args:
        results: folders that `sinkscope evaluate` wrote.
    """
    from sinkscope.evaluation.results import markdown, read_results
    from sinkscope.evaluation.results import table as make_table

    found = read_results(*results)
    if as_json:
        print_json(make_table(found))
    else:
        print(markdown(found))


def bench(names: Positional[tuple[str, ...]] = (), as_json: Json = False) -> None:
    """Runs the measurements of benchmarks/ in a checkout, all or the named ones.

    Args:
        names: such as recording_overhead; all when not given.
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
