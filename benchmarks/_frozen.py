"""Freezes the outputs of sinkscope before a renovation, and compares them after it.

    python benchmarks/_frozen.py store /tmp/before            # every command on the bundled models, 5 minutes on two
    cores python benchmarks/_frozen.py store /tmp/after
    python benchmarks/_frozen.py compare /tmp/before /tmp/after

`store` runs each line of `CALLS` in an empty folder with one thread, and keeps its exit status, its standard output
and, of the folders in `KEPT`, each tensor, table and JSON document. `compare` reports what is missing, new or
different: texts and whole numbers to the letter, other numbers within `TOLERANCE`, which is the rounding of one thread
against another order of the same sums. It exits with 1 if anything differs, but for the names that ``--declared``
lists, one pattern of `fnmatch` each.
"""

import csv
import fnmatch
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

TOLERANCE = 1e-5
VOLATILE = (
    r"(^|\.)(created|started|ended|finished|seconds|.*_s|.*_seconds|versions?|machine|host|processor|device_name|threads|"
    r"sinkscope|commit|sha256|bytes|size|command|file|.*_at|checkpoint_sha256|run|state|wall.*|time|peak.*|tokens_per_second|speed_ratio|checksum|.*memory.*)(\.|\[|$)"
)
SHORT = "--length 32 --steps 32 --block 16"
CALLS = f"""
problems --count 8
check lab-diffusion --json
check lab-autoregressive --json
check lab-shifted --json
check lab-sink-token --json
trace lab-diffusion --problem 0 {SHORT} --out d.trace --json
trace lab-diffusion --problem 1 {SHORT} --hide top:2@current --out hidden.trace --json
trace lab-diffusion --problem 2 {SHORT} --temperature 0.5 --guidance 0.5 --seed 3 --out warm.trace --json
trace lab-diffusion --problem 0 {SHORT} --cache fast-dllm-dual --out cached.trace --json
trace lab-diffusion --problem 0 {SHORT} --keep-maps 3:2:1 --keep top --out top.trace --json
trace lab-autoregressive --problem 0 --length 24 --out a.trace --json
trace lab-autoregressive --problem 1 --length 24 --hide top:1@last_row --out a-hidden.trace --json
trace lab-shifted --prompts prompts.jsonl --length 32 --steps 16 --algorithm entropy --out s.trace --json
trace lab-sink-token --prompts prompts.jsonl {SHORT} --out t.trace --json
trace lab-diffusion --prompts prompts.jsonl {SHORT} --keep statistics --out d.statistics --json
trace lab-autoregressive --prompts prompts.jsonl --length 24 --keep statistics --out a.statistics --json
trace lab-diffusion --prompts prompts.jsonl {SHORT} --keep drift --out d.drift --json
sinks d.trace --json
sinks d.trace --excess 1.5 --unit percent --json
sinks top.trace --json
sinks a.trace --json
sinks s.trace --json
sinks d.statistics --json
tracks d.trace --json
tracks a.trace --json
tracks t.trace --tolerance 1 --json
analyse d.trace --json
analyse a.trace --json
analyse s.trace --json
analyse t.trace --json
map d.trace --step 5 --layer 3 --head 2 --out map.csv --json
figures d.trace a.trace --compare --out figures
export d.trace --to numpy --out export.npz
roles lab-diffusion --problems 10 --canvases 1 {SHORT} --out roles --json
roles lab-autoregressive --problems 10 --length 24 --out a-roles --json
tracks d.trace --roles roles --json
evaluate lab-diffusion --tasks lab-arith,lab-code --limit 12 --hide none,top:1,random:1@seed=1,rowmass:1,top:1@last_row --allow-code-execution --out evaluation
evaluate lab-autoregressive --tasks lab-arith --limit 12 --hide none,top:1,random:1@seed=1,window:4+16,top:1@last_row --out a-evaluation
table evaluation a-evaluation --json
compare-caches lab-diffusion --limit 8 --policies none,fast-dllm-prefix,fast-dllm-dual,dkv-decode,block:keep=sinks --budget 16 --out caches --json
reproduce paper1 --dry-run --json
reproduce paper2 --dry-run --models published --json
roles lab-diffusion --problems 12 --dry-run --json
train lab-nulls-diffusion-1 --updates 40 --watch 20 --out trained
watch-training trained/watch --out watched --json
fold lab-sink-token --out folded
check folded --json
bundle d.trace --out d.bundle.zip
"""
KEPT = """d.trace hidden.trace warm.trace cached.trace top.trace a.trace a-hidden.trace s.trace t.trace d.statistics a.statistics d.drift
map.csv figures trained folded evaluation caches""".split()


def store(out: Path) -> None:
    """Run every call in a folder, and write what it answered beside it."""
    work = out / "work"
    work.mkdir(parents=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    answers: dict[str, Any] = {}
    for call in filter(None, map(str.strip, CALLS.splitlines())):
        print(call, file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "sinkscope", *call.split()]
        ran = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        if call.startswith("problems"):
            (work / "prompts.jsonl").write_text(ran.stdout)
        answers[call] = {"status": ran.returncode, "printed": _parsed(ran.stdout)}
        if ran.returncode:
            print(ran.stderr[-2000:], file=sys.stderr)
    (out / "answers.json").write_text(json.dumps(answers))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of everything in a document that may not change, volatile fields left out."""
    if re.search(VOLATILE, name):
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}[{number}]")
    else:
        yield name, value


def everything(out: Path) -> Iterator[tuple[str, Any]]:
    """Yield every frozen name and value of a folder that `store` wrote."""
    for call, answer in json.loads((out / "answers.json").read_text()).items():
        for name, value in leaves(answer["printed"], "printed"):
            yield f"{call} > {name}", value
        yield f"{call} > status", answer["status"]
    for top in KEPT:
        path = out / "work" / top
        steps: dict[str, list[Any]] = {}
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            for name, value in _values(file, file.relative_to(out / "work").as_posix()):
                if file.name.startswith("steps-"):  # where a part ends depends on how fast the machine was
                    steps.setdefault(re.sub(r"steps-\d+", "steps", name), []).append(value)
                else:
                    yield name, value
        for name, parts in steps.items():
            rows = [one[:, None] if one.ndim == 1 else one for one in parts]
            longest = max(one.shape[-1] for one in rows)  # an autoregressive canvas grows
            yield (
                name,
                numpy.concatenate(
                    [numpy.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, longest - one.shape[-1])]) for one in rows]
                ),
            )


def _values(file: Path, name: str) -> Iterator[tuple[str, Any]]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        for key, tensor in load_file(file).items():
            yield f"{name} > {key}", (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    elif file.suffix == ".csv":
        with file.open(newline="") as rows:
            for number, row in enumerate(csv.reader(rows)):
                for column, text in enumerate(row):
                    yield f"{name} > {number}.{column}", _parsed(text)
    elif file.name == "answers.jsonl" or file.suffix == ".jsonl":
        for number, line in enumerate(file.read_text().splitlines()):
            for key, value in leaves(_parsed(line), str(number)):
                yield f"{name} > {key}", value


def same(old: Any, new: Any) -> bool:
    """Return whether two frozen values are equal, fractions within `TOLERANCE`."""
    if isinstance(old, numpy.ndarray):
        if not isinstance(new, numpy.ndarray) or old.shape != new.shape or old.dtype != new.dtype:
            return False
        if old.dtype.kind in "iub":
            return bool((old == new).all())
        return bool(numpy.allclose(old, new, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))
    if isinstance(old, float) and isinstance(new, int | float):
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(old) and math.isnan(new))
    return type(old) is type(new) and old == new


def compare(old: Path, new: Path, declared: list[str]) -> int:
    """Print what differs, and return how many values do."""
    theirs, ours = dict(everything(old)), dict(everything(new))
    wrong = 0
    for name in dict.fromkeys([*theirs, *ours]):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in declared):
            continue
        if name not in ours or name not in theirs or not same(theirs[name], ours[name]):
            wrong += 1
            if wrong <= 200:
                shown = [str(one.get(name, "nothing"))[:80].replace("\n", " ") for one in (theirs, ours)]
                print(f"{name}\n    {shown[0]}\n    {shown[1]}")
    print(f"{len(theirs):,} values frozen, {wrong:,} differ")
    return wrong


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "store":
        store(Path(rest[0]).absolute())
    else:
        sys.exit(bool(compare(Path(rest[0]), Path(rest[1]), rest[2:][1:])))
