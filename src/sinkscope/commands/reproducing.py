"""`reproduce`: a paper's tables and figures in one command."""

from pathlib import Path
from typing import Any, Literal

import tyro
from tyro.conf import Positional

from sinkscope.commands.shown import Json, note, print_json
from sinkscope.errors import CallError


def reproduce(
    paper: Positional[Literal["paper1", "paper2"]],
    out: Path | None = None,
    models: str = "published",
    dry_run: bool = False,
    limit: int | None = None,
    ks: str = "1,5,10",
    seeds: int = 3,
    controls: str = "random,ranks",
    traces: int = 30,
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    batch: int = 8,
    allow_code_execution: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    tflops: float = 125.0,
    as_json: Json = False,
) -> None:
    """Every table and figure of a paper from named checkpoints; the same command goes on after a kill.

    Args:
        paper: paper1 is arXiv 2510.15731, Attention Sinks in Diffusion Language Models; paper2 is arXiv 2601.19657, One Token Is Enough
            (its Tables 1 and 2; ks, seeds, controls and traces are paper1's).
        out: folder for everything. (default: none, which only a dry run allows)
        models: published, lab, or names separated by commas; of paper2 NAME=FOLDER separated by commas, published for a dry run.
        dry_run: only says how many forward calls, how much memory and disk, and how many GPU hours each part takes.
        limit: problems of each task. (default: all)
        ks: how many sinks are hidden, separated by commas.
        seeds: of each control that draws at random.
        controls: what else is hidden for comparison: some of random, ranks, mass, persistent, class.
        traces: recorded generations a model.
        data: TASK=PATH, a local file of a task; may be given several times.
        batch: prompts written side by side.
        allow_code_execution: runs the programs that models write, in a sandbox; those tasks are left out without it.
        device: cpu, cuda …
        dtype: float32, bfloat16 or float16. (default: the stored one)
        tflops: speed of your card in 10¹² operations a second, for the dry run.
    """
    from sinkscope.evaluation.runbook import LAB, PUBLISHED, paper1
    from sinkscope.evaluation.tasks import read_data_flags
    from sinkscope.reproduction import Options

    if (limit is not None and limit < 1) or traces < 1 or seeds < 0:
        raise CallError(f"expected --limit and --traces from 1, --seeds from 0 upwards, found {limit}, {traces}, {seeds}")
    if paper == "paper2":
        from sinkscope.evaluation.paper2 import paper2, read_folders

        parts = paper2(read_folders(models), limit=limit)
        _run(
            parts, dry_run, out, Options(out or Path(), read_data_flags(data), batch, device, dtype, allow_code_execution), tflops, as_json
        )
        return
    names = {"published": PUBLISHED, "lab": LAB}.get(models) or tuple(part.strip() for part in models.split(",") if part.strip())
    counts = [part.strip() for part in ks.split(",") if part.strip()]
    if not all(part.isdigit() and int(part) for part in counts):
        raise CallError(f"--ks: expected whole numbers from 1 upwards, separated by commas, found {ks!r}")
    against = [part.strip() for part in controls.split(",") if part.strip()]
    parts = paper1(names, ks=[int(part) for part in counts], seeds=seeds, controls=against, limit=limit, traces=traces)
    _run(parts, dry_run, out, Options(out or Path(), read_data_flags(data), batch, device, dtype, allow_code_execution), tflops, as_json)


def _run(parts: Any, dry_run: bool, out: Path | None, options: Any, tflops: float, as_json: bool) -> None:
    from sinkscope.reproduction import dry_run as estimate
    from sinkscope.reproduction import reproduce as run
    from sinkscope.reproduction import show_dry_run

    if dry_run:
        found = estimate(parts, tflops)
        if as_json:
            print_json(found)
        else:
            print(show_dry_run(found))
        return
    if out is None:
        raise CallError("expected --out FOLDER, or --dry-run")
    written = run(parts, options, note)
    if as_json:
        print_json({"files": [str(path) for path in written]})
    else:
        for path in written:
            print(path)
