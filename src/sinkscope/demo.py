"""`sinkscope demo`: both bundled models write answers to held-out problems; their sinks are recorded, named, followed and shown."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError

OPERATIONS = 3
MODELS = {"lab-diffusion": "diffusion", "lab-autoregressive": "autoregressive"}


def run_demo(out: Path, *, problems: int = 3, length: int = 64, block: int = 16, say: Callable[[str], None] = print) -> Path:
    """Records, finds, follows and draws; returns the page.

    Args:
        out: a new or empty folder: ``traces/``, ``figures/`` and ``report.html`` go there.
        problems: held-out problems each model writes: the first ones with three operations, whose answers are longest.
        length: tokens to write.
        block: of the diffusion sampler.
        say: gets one line per thing done.

    Raises:
        CallError: a folder in use, or settings that do not fit.
    """
    import sinkscope
    from sinkscope.decoding import LLaDASettings
    from sinkscope.figures import Table, draw_figures, write_page
    from sinkscope.lab.problems import read_result
    from sinkscope.lab.prompts import held_out, problem_prompt
    from sinkscope.traces import claim_folder

    long = [index for index, problem in enumerate(held_out("lab-arith")) if problem.worked.count("=") == OPERATIONS]
    if not 1 <= problems <= len(long):
        raise CallError(f"problems: expected 1 to {len(long)}, found {problems}")
    rows = [{"number": index, **problem_prompt("lab-arith", index)} for index in long[:problems]]
    LLaDASettings(length=length, steps=length, block=block)  # refused before anything is written
    claim_folder(out)
    started = time.monotonic()
    traces, movement = [], []
    for name, sampler in MODELS.items():
        model = sinkscope.load(name)
        settings: dict[str, Any] = (
            {"length": length} if sampler == "autoregressive" else {"length": length, "steps": length, "block": block}
        )
        answers = []
        folder = out / "traces" / name
        with sinkscope.recording(model, out=folder, numbered=True):
            for row in rows:
                answers.append(sinkscope.generate(model, row["prompt"], **settings).text)
        recorded = sinkscope.open_traces(folder)
        traces.append(recorded[0])
        for trace, row, answer in zip(recorded, rows, answers, strict=True):
            number = row["number"]
            right = read_result(answer) == row["answer"]
            numbers = _movement(trace)
            movement.append([name, number, "right" if right else f"wrong ({row['answer']} expected)", *numbers.values()])
            say(
                f"{name}, problem {number}: {'right' if right else 'wrong'} answer; {numbers['sinks']} sinks; "
                f"{numbers['moves']} moves a head, {numbers['moves, shuffled']} with the steps shuffled"
            )
    figures = draw_figures(traces, out / "figures", compare=True)
    table = Table(
        "Does the main sink move? Every problem on its own",
        ["model", "problem", "answer", *numbers],
        movement,
        "Moves: how often the main sink of a head stands elsewhere than one step before, mean over the heads that have one "
        "in two steps or more. "
        "Drift: slope of its position, in positions a step. Shuffled: the same with the order of the steps, for drift of blocks twice as "
        "long as a moving sink stays, drawn at random, mean and the range of 95 % of 200 draws. Averaged: the diffusion model's "
        "columns averaged over all steps so far, which is what a running sum shows: a control for the autoregressive model, whose "
        "columns can only be sums "
        "(its moves are read from the newest 16 queries). Largest: moves of the largest column of all heads, sink or not, because "
        "an excess of 3 asks 1 % of the attention of 300 queries but 19 % of that of 16, and few heads of the autoregressive "
        "model have such a sink. What this does not show: whether a drift only follows the "
        "tokens that are being committed, or what holds for other models.",
    )
    page = write_page(traces, out, figures=figures, tables=[table], command=f"sinkscope demo --out {out}")
    say(f"{time.monotonic() - started:.0f} s; the page, the figures and the traces are in {out}")
    return page


def _movement(trace: Any) -> dict[str, Any]:
    """The table's numbers for one trace."""
    import numpy as np

    from sinkscope.sinks import find_sinks, is_sink, main_sinks, movement_test, running_mean, track

    sinks = find_sinks(trace)
    test = movement_test(track(sinks).main)
    largest = movement_test(np.nan_to_num(sinks.columns, nan=-1).argmax(axis=-1))
    averaged: Any = "–"
    if not trace.causal:
        columns = running_mean(sinks.columns)
        averaged = f"{movement_test(main_sinks(columns, is_sink(columns)), shuffles=1).moves_per_head:.2f}"
    return {
        "sinks": len(sinks),
        "heads": test.heads,
        "moves": f"{test.moves_per_head:.2f}",
        "moves, shuffled": _range(test.null_moves, ".2f"),
        "moves, averaged": averaged,
        "drift": f"{test.drift_per_step:+.3f}",
        "drift, shuffled": _range(test.null_drift, "+.3f"),
        "largest": f"{largest.moves_per_head:.2f}",
        "largest, shuffled": _range(largest.null_moves, ".2f"),
    }


def _range(null: tuple[float, float, float], form: str) -> str:
    mean, low, high = (format(value, form) for value in null)
    return f"{mean} ({low} to {high})"
