"""`demo`: both bundled models write answers to held-out problems; their sinks are recorded, named, followed and shown."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.commands.command import Command
from sinkscope.commands.output import note
from sinkscope.errors import CallError

OPERATIONS = 3
MODELS = {"lab-diffusion": "diffusion", "lab-autoregressive": "autoregressive"}
CAPTION = (
    "Each head has a main sink: its largest column that is a sink. "
    "Moves: how often the main sink goes elsewhere from one step to the next, and the old place stops being a sink or the new one was "
    "none, mean over the heads with a main sink in at least two steps. "
    "Swaps: how often it changes place with another sink, both sinks before and after. "
    "Drift: slope of its position over the steps, in positions a step. "
    "Shuffled: the same number when the order of the steps is random, as the mean and the 95 % range of 200 shuffles; for drift, blocks of "
    "steps are shuffled, twice as long as a moving sink stays in one place. "
    "Averaged: moves in the running mean of the columns. The autoregressive model's columns can only be sums over the past (its moves are "
    "those of the newest 16 queries), so this shows how much of the difference a running sum makes by itself. "
    "Largest: moves of each head's largest column, whether it is a sink or not. An excess of 3 is 1 % of the attention of 300 queries but "
    "19 % of that of 16, so few heads of the autoregressive model have a main sink. "
    "The table does not show whether a drift only follows the tokens that are being committed, nor what other models do."
)


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Bundled models: trace, sinks, tracks, figures and a page.

    Attributes:
        out: a new or empty folder.
        problems: held-out problems each model is traced on: the first ones with three operations.
        length: tokens to write.
        block: tokens of a block of the diffusion sampler.
    """

    out: Path = Path("demo-output")
    problems: int = 3
    length: int = 64
    block: int = 16

    def run(self) -> None:
        print(run_demo(self.out, problems=self.problems, length=self.length, block=self.block, say=note))


def run_demo(out: Path, *, problems: int = 3, length: int = 64, block: int = 16, say: Callable[[str], None] = print) -> Path:
    """Record both models, find and follow their sinks, draw the figures, and return the page that shows it all.

    Args:
        out: a new or empty folder; it gets ``traces/``, ``figures/`` and ``report.html``.
        problems: held-out problems each model writes: the first ones with three operations, whose answers are longest.
        length: tokens to write.
        block: tokens of a block of the diffusion sampler.
        say: gets one line per thing done.

    Raises:
        CallError: the folder is in use, or the settings do not fit together.
    """
    import sinkscope
    from sinkscope.decoding import LLaDASettings
    from sinkscope.figures import Table, draw_figures, write_page
    from sinkscope.lab.prompts import held_out, problem_prompt
    from sinkscope.lab.word_problems import read_result
    from sinkscope.traces import claim_folder

    long = [index for index, problem in enumerate(held_out("lab-arith")) if problem.worked.count("=") == OPERATIONS]
    if not 1 <= problems <= len(long):
        raise CallError(f"problems: expected 1 to {len(long)}, found {problems}")
    rows = [{"number": index, **problem_prompt("lab-arith", index)} for index in long[:problems]]
    LLaDASettings(length=length, steps=length, block=block)  # settings that do not fit are refused before anything is written
    claim_folder(out)
    started = time.monotonic()
    traces, movement = [], []
    for name, sampler in MODELS.items():
        model = sinkscope.load(name)
        settings: dict[str, Any] = (
            {"length": length} if sampler == "autoregressive" else {"length": length, "steps": length, "block": block}
        )
        folder = out / "traces" / name
        with sinkscope.recording(model, out=folder, numbered=True):
            answers = [sinkscope.generate(model, row["prompt"], **settings).text for row in rows]
        recorded = sinkscope.open_traces(folder)
        traces.append(recorded[0])
        for trace, row, answer in zip(recorded, rows, answers, strict=True):
            number = row["number"]
            right = read_result(answer) == row["answer"]
            numbers = movement_of(trace)
            movement.append([name, number, "right" if right else f"wrong ({row['answer']} expected)", *numbers.values()])
            say(
                f"{name}, problem {number}: {'right' if right else 'wrong'} answer; {numbers['sinks']} sinks; "
                f"{numbers['moves']} moves a head, {numbers['moves, shuffled']} with the steps shuffled"
            )
    figures = draw_figures(traces, out / "figures", compare=True)
    table = Table("Does the main sink move? One row per problem", ["model", "problem", "answer", *numbers], movement, CAPTION)
    page = write_page(traces, out, figures=figures, tables=[table], command=f"sinkscope demo --out {out}")
    say(f"{time.monotonic() - started:.0f} s; the page, the figures and the traces are in {out}")
    return page


def movement_of(trace: Any) -> dict[str, Any]:
    """Return one trace's cells of the demo's table, by column; `CAPTION` says what they are."""
    import numpy as np

    from sinkscope.sinks import find_sinks, is_sink, main_sinks, movement_test, running_mean, sinks_in, track

    sinks = find_sinks(trace)
    tracks = track(sinks)
    test = movement_test(tracks.main, tracks.is_sink)
    largest = movement_test(np.nan_to_num(sinks.columns, nan=-1).argmax(axis=-1))
    averaged: Any = "–"
    if not trace.causal:
        columns = running_mean(sinks.columns)
        averaged = f"{movement_test(main_sinks(columns, is_sink(columns)), sinks_in(is_sink(columns)), shuffles=1).moves_per_head:.2f}"
    return {
        "sinks": len(sinks),
        "heads": test.heads,
        "moves": f"{test.moves_per_head:.2f}",
        "swaps": f"{test.swaps_per_head:.2f}",
        "moves, shuffled": _with_range(test.null_moves, ".2f"),
        "moves, averaged": averaged,
        "drift": f"{test.drift_per_step:+.3f}",
        "drift, shuffled": _with_range(test.null_drift, "+.3f"),
        "largest": f"{largest.moves_per_head:.2f}",
        "largest, shuffled": _with_range(largest.null_moves, ".2f"),
    }


def _with_range(null: tuple[float, float, float], form: str) -> str:
    mean, low, high = (format(value, form) for value in null)
    return f"{mean} ({low} to {high})"
