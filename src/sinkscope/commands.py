"""The commands: each parses nothing, imports what it needs, calls one function and prints."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from sinkscope.errors import CallError, SinkscopeError

Unit = Literal["queries", "percent", "mean"]
Json = Annotated[bool, tyro.conf.arg(name="json", help="Prints one JSON document to standard output.")]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False))


def _given(flags: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(flags).items() if value is not None}


def demo(out: Path = Path("demo-output"), problems: int = 3, length: int = 64, block: int = 16) -> None:
    """Bundled models: trace, sinks, tracks, figures and a page.

    Args:
        out: a new or empty folder.
        problems: held-out problems each model is traced on: the first ones with three operations.
        length: tokens to write.
        block: of the diffusion sampler.
    """
    from sinkscope.demo import run_demo

    page = run_demo(out, problems=problems, length=length, block=block, say=_note)
    print(page)


def trace(
    model: Positional[str],
    out: Path,
    prompt: str | None = None,
    prompts: Path | None = None,
    problem: int | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    as_json: Json = False,
    sampler: Any = None,
) -> None:
    """Writes with a model and records where attention goes at every step, layer and head.

    Args:
        model: a bundled name, a folder, or a hub id.
        out: a new or empty folder for the trace.
        prompt: raw text.
        prompts: a file of JSON lines with a "prompt" each; makes numbered traces.
        problem: number of a held-out problem of the lab, with its shots (0 when no prompt is given to a bundled model).
        device: cpu, cuda, cuda:1 …
        dtype: float32, bfloat16 or float16; the stored one when not given.
    """
    import sinkscope
    from sinkscope.models import BUNDLED

    given = [name for name, value in (("--prompt", prompt), ("--prompts", prompts), ("--problem", problem)) if value is not None]
    if len(given) > 1:
        raise CallError(f"expected one of --prompt, --prompts and --problem, found {' and '.join(given)}")
    if not given and model not in BUNDLED:
        raise CallError(f"expected --prompt TEXT, --prompts FILE or --problem N for {model}")
    texts = _prompts(prompt, prompts, problem)
    loaded = sinkscope.load(model, dtype=dtype, device=device)
    from tqdm import tqdm

    from sinkscope.decoding import make_batch, resolve_settings, step_count

    settings = resolve_settings(loaded.family, **_given(sampler))
    for text in texts:  # every prompt is checked before the first is written
        make_batch(loaded, [loaded.encode(text)], [text], settings.length)
    generations = []
    total = step_count(settings) * len(texts)
    with (
        tqdm(total=total, desc="steps", unit="step", disable=None) as bar,
        sinkscope.recording(loaded, out=out, numbered=prompts is not None) as recorder,
    ):
        for text in texts:
            generations.append(sinkscope.generate(loaded, text, on_step=lambda _: bar.update(), **dataclasses.asdict(settings)))
    folders = [str(folder) for folder in recorder.folders]
    if as_json:
        _print_json({"traces": [{"trace": f, "text": g.text, "steps": g.steps} for f, g in zip(folders, generations, strict=True)]})
    else:
        for folder, generation in zip(folders, generations, strict=True):
            print(f"{folder}: {generation.steps} steps\n{generation.text}")


def _prompts(prompt: str | None, prompts: Path | None, problem: int | None) -> list[str]:
    if prompt is not None:
        return [prompt]
    if prompts is not None:
        return _read_prompts(prompts)
    from sinkscope.lab.prompts import problem_prompt

    return [problem_prompt("lab-arith", problem or 0)["prompt"]]


def _read_prompts(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CallError(f"--prompts {path}: cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CallError(f"--prompts {path}, line {number}: expected JSON, found {line[:60]!r}") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise CallError(f'--prompts {path}, line {number}: expected an object with a "prompt" text, found {line[:60]!r}')
        found.append(row["prompt"])
    if not found:
        raise CallError(f'--prompts {path}: expected lines like {{"prompt": "…"}}, found none')
    return found


def _open(path: Path) -> list[Any]:
    from sinkscope.traces import open_traces

    traces = open_traces(path)
    for one in traces:
        if not one.complete:
            _note(f"{one.folder}: incomplete, {one.steps} whole steps")
    return traces


def sinks(trace: Positional[Path], excess: float = 3.0, unit: Unit = "queries", as_json: Json = False) -> None:
    """Which tokens are sinks, where, and how strong.

    Args:
        trace: folder of a trace, or of numbered traces.
        excess: how far a column must exceed the mean of the others (Eq. 3).
        unit: of the excess: queries' worth of attention, percent of all attention, or mean (share).
    """
    from sinkscope.sinks import find_sinks

    documents = []
    for one in _open(trace):
        found = find_sinks(one, excess, unit)
        steps, layers, heads, _ = found.shape
        document = {
            "trace": str(one.folder),
            "complete": one.complete,
            "excess": excess,
            "unit": unit,
            "steps": steps,
            "layers": layers,
            "heads": heads,
        }
        if as_json:
            documents.append({**document, "sinks": found.rows(), "selected_share": found.selected_share})
        else:
            _print_sinks(one, found)
    if as_json:
        _print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def _print_sinks(trace: Any, found: Any) -> None:
    from collections import Counter

    steps, layers, heads, _ = found.shape
    print(f"{trace.folder}: {len(found)} sinks in {steps} steps, {layers} layers, {heads} heads")
    print(f"excess > {found.threshold:g} {found.unit}; {found.selected_share:.2%} of the tokens are sinks")
    places = Counter(zip(found.position.tolist(), found.token.tolist(), strict=True))
    print(f"\n{'position':>8}  {'token':<14}{'times a sink':>12}{'mean column':>13}")
    for (position, token), count in places.most_common(12):
        mean = found.column_sum[(found.position == position) & (found.token == token)].mean()
        print(f"{position:>8}  {trace.token_text(token)!r:<14}{count:>12}{mean:>13.1f}")


def tracks(trace: Positional[Path], excess: float = 3.0, unit: Unit = "queries", as_json: Json = False) -> None:
    """How sinks move: tracks, their kinds, moves and drift beside a null of shuffled steps.

    Args:
        trace: folder of a trace, or of numbered traces.
        excess: see `sinkscope sinks`.
        unit: see `sinkscope sinks`.
    """
    from sinkscope.sinks import find_sinks, movement_test, track

    documents = []
    for one in _open(trace):
        followed = track(find_sinks(one, excess, unit))
        test = movement_test(followed.main)
        if as_json:
            documents.append({"trace": str(one.folder), "complete": one.complete, **followed.as_dict(), "null": dataclasses.asdict(test)})
            continue
        print(f"{one.folder}: {len(followed.tracks)} tracks, followed in {followed.source}")
        print("  " + ", ".join(f"{count} {kind}" for kind, count in followed.kinds.items()))
        mean, low, high = test.null_moves
        print(f"  moves per head {test.moves_per_head:.2f}; with steps shuffled {mean:.2f} ({low:.2f} to {high:.2f})")
        mean, low, high = test.null_drift
        print(f"  drift {test.drift_per_step:+.3f} positions a step; with steps shuffled {mean:+.3f} ({low:+.3f} to {high:+.3f})")
    if as_json:
        _print_json(documents[0] if len(documents) == 1 else {"traces": documents})


def figures(traces: Positional[tuple[Path, ...]], out: Path, excess: float = 3.0, compare: bool = False) -> None:
    """Paper 1's Figures 1, 3, 5 and 7 from your own traces: PNG, PDF and CSV each.

    Args:
        traces: folders of traces.
        out: folder for the files.
        excess: see `sinkscope sinks`.
        compare: puts the traces side by side.
    """
    from sinkscope.report import draw_figures

    if not traces:
        raise CallError("expected at least one trace")
    for path in draw_figures([one for folder in traces for one in _open(folder)], out, excess=excess, compare=compare):
        print(path)


def problems(task: str = "lab-arith", count: int = 10) -> None:
    """Held-out problems of the lab as JSON lines {"prompt", "answer"}.

    Args:
        task: lab-arith or lab-code.
        count: how many, from the first.
    """
    from sinkscope.lab.prompts import problem_prompts

    for row in problem_prompts(task, count):
        _print_json(row)


def train(
    recipe: Positional[str], out: Path, updates: int | None = None, seed: int | None = None, device: str = "cpu", compile: bool = False
) -> None:
    """Trains one of the lab's recipes; the same command goes on after a kill.

    Args:
        recipe: lab-diffusion or lab-autoregressive.
        out: folder for the checkpoint.
        updates: optimiser steps, when not the recipe's own.
        seed: of everything random, when not the recipe's own.
        device: cpu, cuda …
        compile: compiles the layers: faster, needs a C++ compiler, rounds differently.
    """
    from sinkscope.lab.checkpoint import train_checkpoint
    from sinkscope.lab.recipes import RECIPES

    if recipe not in RECIPES:
        raise CallError(f"no recipe {recipe!r}; expected one of {', '.join(RECIPES)}")
    changes = {"updates": updates, "seed": seed, "compile": compile or None}
    resolved = dataclasses.replace(RECIPES[recipe], **{name: value for name, value in changes.items() if value is not None})
    command = " ".join(["sinkscope", *sys.argv[1:]])
    print(train_checkpoint(resolved, out, device=device, command=command))


def check(model: Positional[str], device: str = "cpu", dtype: str | None = None, as_json: Json = False) -> None:
    """Loads a checkpoint and proves it: keys, rotations, attention that adds up, hiding that bites.

    Args:
        model: a bundled name, a folder, or a hub id.
        device: cpu, cuda …
        dtype: float32, bfloat16 or float16.
    """
    import sinkscope
    from sinkscope.decoding.checking import check_model

    loaded = sinkscope.load(model, dtype=dtype, device=device)
    checks = check_model(loaded)
    if as_json:
        _print_json({"model": loaded.card.as_dict(), "checks": [dataclasses.asdict(one) for one in checks]})
    else:
        for one in checks:
            print(f"{'ok    ' if one.passed else 'FAILED'}  {one.name}: {one.found}")
    if not all(one.passed for one in checks):
        raise SinkscopeError(f"{model}: {sum(not one.passed for one in checks)} checks failed")


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
        settings=_given(sampler),
        allow_code_execution=allow_code_execution,
    )
    if as_json:
        _print_json(table(results))
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
        _print_json(make_table(found))
    else:
        print(markdown(found))


def bench(names: Positional[tuple[str, ...]] = (), as_json: Json = False) -> None:
    """Runs the measurements of benchmarks/ in a checkout, all or the named ones.

    Args:
        names: such as recording_overhead; all when not given.
    """
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    scripts = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
    if not scripts:
        raise SinkscopeError(f"no benchmarks at {folder}; `sinkscope bench` needs a checkout of the repository")
    unknown = [name for name in names if name not in scripts]
    if unknown:
        raise CallError(f"no benchmark {unknown[0]!r}; expected one of {', '.join(scripts)}")
    rows = {}
    for name in names or scripts:
        _note(f"{name} …")
        done = subprocess.run(
            [sys.executable, scripts[name], *(["--json"] if as_json else [])], stdout=subprocess.PIPE if as_json else None
        )
        if done.returncode:
            raise SinkscopeError(f"{scripts[name].name} failed with status {done.returncode}")
        if as_json:
            rows[name] = json.loads(done.stdout)
    if as_json:
        _print_json(rows)


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "trace": trace,
    "sinks": sinks,
    "tracks": tracks,
    "figures": figures,
    "problems": problems,
    "evaluate": evaluate,
    "table": table,
    "train": train,
    "check": check,
    "bench": bench,
}
