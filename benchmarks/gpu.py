r"""What recording costs on a GPU at LLaDA-8B's shape, in bf16 with random weights: every figure as a row, printed as it
comes.

    attention   with columns over flash attention (torch's others beside it), by CUDA events
                around calls in a queue; goal 1.7 at --kernel, S = 4096
    recording   recorded over plain, a step's time by events inside the recording, at --length, S = 1024;
                goals 1.03 in time, 1.01 in memory. time_early is of the first steps, which no writer holds up;
                drain_s is how long closing took behind the last step
    hiding      a key of each head hidden, over recorded; goal 1.02
    sampling    the published loops over ours; goal 1.1, the same tokens; where they part, how close the choice was
    tiles       which tiles the kernels like on this device
    compiled    recorded over plain with compiled layers
    graphs      a step as a CUDA graph over one without (plain, recorded and hidden alone): plain, recorded, hidden, at
                every level, batch 1, 4, 8 and S = 256, 1024, 4096 (or the --batch and --length given); goals over the
                plain graph 1.08, hidden over recorded 1.10, top and statistics over the plain graph 1.10. Five
                minutes: `--only graphs`
    control     the same tokens in float32 (40 GB)

Run it on the machine in question, it needs 20 GB of GPU memory; a row that fails says why, and the others follow:

    python benchmarks/gpu.py --json

`--only attention,hiding` leaves the others out, `--batch 8 --length 4096` measures attention and recording at another
size; sampling and the control are of one canvas. A checkout that is not installed will do, with torch, transformers and
jaxtyping there. Traces go to --folder, memory where /dev/shm has room. Without a GPU, for a try of all its lines (the
figures mean nothing):

    python benchmarks/gpu.py --device cpu --shape tiny --dtype float32 --length 96 --kernel 128 --written 32 \
        --steps 3 --rounds 1 --backend eager
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from _gpu_attention import GOAL, over_flash, tiles
from _gpu_graphs import SHAPES
from _gpu_graphs import rows as graph_rows
from _gpu_model import random_model
from _gpu_recording import compiled, recorded_memory, recorded_time
from _gpu_sampling import LOOPS, control, sampling
from _measuring import flags, machine, processor

SECTIONS = ("attention", "recording", "hiding", "sampling", "tiles", "compiled", "graphs", "control")
Row = tuple[str, dict[str, float], Callable[[], dict[str, Any]]]


def as_installed(folder: str) -> None:
    """Lets a bare checkout run: its sources on the path, and the version that a trace names where an installation would
    give it.
    """
    root = Path(__file__).resolve().parent.parent
    try:
        version("sinkscope")
    except PackageNotFoundError:
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        about = Path(folder) / f"sinkscope-{project['version']}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sinkscope\nVersion: {project['version']}\n")
        sys.path[:0] = [str(root / "src"), folder]


def rows(given: Any) -> Iterator[Row]:
    """What there is to measure: name, goals, and what measures it."""
    dtype, model = getattr(torch, given.dtype), None
    usual = given.device.startswith("cuda") and (given.batch, given.length) == (1, 1024)
    shapes = SHAPES if usual else ((given.batch, given.length),)

    def loaded() -> Any:
        nonlocal model
        if model is None:
            longest = [length for _, length in shapes] if "graphs" in given.only else []
            model = random_model(given.shape, given.device, dtype, max(given.length, 256, *longest))
        return model

    for section in given.only:
        if section == "attention":
            for length in dict.fromkeys((given.kernel, given.length)):
                for kind in ("columns", "hidden", "masked, hidden", "own kernels", "cudnn", "sdpa"):
                    goal = {"goal_time": GOAL} if kind == "columns" and length == given.kernel else {}
                    yield f"attention, {kind} over flash, S = {length}", goal, partial(over_flash, given, length, kind)
        if section == "recording":
            for keep in ("columns", "top", "statistics"):
                goal = {"goal_time": 1.03} if keep == "columns" else {}
                yield f"recorded over plain, {keep}", goal, lambda keep=keep: recorded_time(loaded(), given, keep)
            yield "recorded over plain, memory", {"goal_memory": 1.01}, lambda: recorded_memory(loaded(), given)
        if section == "hiding":
            yield (
                "hiding over recorded",
                {"goal_time": 1.02},
                lambda: recorded_time(loaded(), given, "columns", hide=True),
            )
        if section == "sampling":
            for family in LOOPS:
                yield (
                    f"published loop over ours, {family}",
                    {"goal_time": 1.1},
                    lambda family=family: sampling(loaded(), given, family),
                )
        if section == "tiles":
            for kernel in ("columns", "attention"):
                for dressed, more in ((False, ""), (True, ", masked and hidden")):
                    yield (
                        f"tiles of the {kernel}{more}, S = {given.kernel}",
                        {},
                        partial(tiles, given, given.kernel, kernel, dressed),
                    )
        if section == "compiled":
            yield "recorded over plain, compiled layers", {}, lambda: compiled(loaded(), given)
        if section == "graphs":
            for what, measure in graph_rows(loaded, given, shapes):
                yield what, {}, measure
        if section == "control":
            for family in LOOPS:
                yield f"same tokens in float32, {family}", {}, lambda family=family: control(loaded(), given, family)


def measured(row: Row) -> dict[str, Any]:
    """A row's figures, or why there are none."""
    what, goals, measure = row
    started = time.perf_counter()
    try:
        found = measure()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {"what": what, **goals, **found, "took_s": round(time.perf_counter() - started, 1)}


def clocks() -> dict[str, str] | None:
    """What the device runs at now, as its driver says; None where that cannot be asked."""
    names = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "temperature.gpu")
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    command = [
        "nvidia-smi",
        *([f"--id=GPU-{uuid}"] if uuid else []),
        f"--query-gpu={','.join(names)}",
        "--format=csv,noheader",
    ]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
    return dict(zip(names, (one.strip() for one in told.split(",")), strict=False))


def roomy() -> str:
    """Where traces go: memory where it holds the largest, 1.6 GB at the defaults; containers often have 64 MB of it."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and shutil.disk_usage(memory).free > 4e9 else tempfile.gettempdir()


def about(given: Any) -> dict[str, Any]:
    """What the figures are of."""
    packages = {}
    for name in ("sinkscope", "torch", "triton", "transformers"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    there = given.device.startswith("cuda")
    device = torch.cuda.get_device_name() if there else processor()
    settings = {
        name: getattr(given, name)
        for name in ("shape", "dtype", "batch", "length", "kernel", "written", "steps", "rounds")
    }
    return {
        "device": device,
        **machine(),
        "cuda": torch.version.cuda if there else None,
        "python": platform.python_version(),
        **packages,
        **settings,
    }


def main() -> None:
    given = flags(
        device="cuda", shape="llada-8b", dtype="bfloat16", batch=1, length=1024, kernel=4096, written=128, steps=64, rounds=3,
        only=SECTIONS, folder=roomy(), backend="inductor",
    )  # fmt: skip
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "gpu: expected a CUDA device, found none: nothing is measured; --help says how to run without one",
            file=sys.stderr,
        )
        print("[]" if given.json else "")
        return
    if given.device.startswith("cuda"):
        torch.cuda.set_device(
            given.device if ":" in given.device else 0
        )  # events, waits and memory are of the current device
    unknown = [name for name in given.only if name not in SECTIONS]
    if unknown:
        sys.exit(f"gpu: expected --only {', '.join(SECTIONS)}, found {', '.join(unknown)}")
    if not given.device.startswith("cuda"):
        os.environ.setdefault("TRITON_INTERPRET", "1")
    with tempfile.TemporaryDirectory() as folder:
        as_installed(folder)
        first = True
        print("[" if given.json else json.dumps(about(given)), flush=True)
        for row in rows(given):
            found = measured(row) | {"clocks": clocks() if given.device.startswith("cuda") else None}
            if given.json:
                print("" if first else ",", json.dumps(found | about(given)), sep="", flush=True)
            else:
                print(
                    found.pop("what"),
                    *(f"{name} {value}" for name, value in found.items() if value is not None),
                    sep="  ",
                    flush=True,
                )
            first = False
        if given.json:
            print("]", flush=True)


if __name__ == "__main__":
    main()
