"""`demo`: two bundled models answer held-out problems, and a page shows their sinks."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.commands.command import Command, Overwrite
from sinkscope.commands.output import note
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.folder import claimed_folder, names_in

OPERATIONS = 3
MODELS = ("lab-diffusion", "lab-autoregressive")
CAPTION = (
    "The main sink of a head is its sink with the largest column. Moves: how often it changes its position from one "
    "step to the next so that the old place stops being a sink or the new one was none before, mean over heads that "
    "have a main sink in at least two steps. Swaps: both places are sinks before and after. Drift: the slope of its "
    "position over the steps. Shuffled: the same with the steps in random order, mean and 95 % range of 200 shuffles; "
    "for drift in blocks twice as long as a moving sink stays (–: one trace cannot tell). Averaged: moves in running "
    "means of the columns, which shows how much of the difference between the models comes from summing alone: an "
    "autoregressive model adds up its past queries, and its moves are read from the 16 newest. Largest: moves of each "
    "head's largest column, sink or not. With 300 queries, an excess of 3 is 1 % of all attention; with 16 it is 19 %. "
    "The table does not show whether a drift only follows the order in which tokens are committed."
)


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Trace two bundled models on the same problems; make a page with their sinks, tracks and figures.

    Attributes:
        out: a new or empty folder.
        problems: number of held-out problems: the first ones with three operations.
        length: tokens to write.
        block: tokens in a block of the diffusion sampler.
    """

    out: Path = Path("demo-output")
    problems: int = 3
    length: int = 64
    block: int = 16
    overwrite: Overwrite = False

    def run(self) -> None:
        """Record both models, find and track their sinks, draw the figures, and print the paths of both pages."""
        import sinkscope
        from sinkscope.decoding import LLaDASettings
        from sinkscope.figures import Table, draw_figures, write_page
        from sinkscope.figures.explorer import explore
        from sinkscope.figures.page import EXPLORER, REPORT
        from sinkscope.lab.problems import read_result
        from sinkscope.lab.prompts import held_out, problem_prompt
        from sinkscope.traces import claim_folder

        out = self.out
        long = [index for index, problem in enumerate(held_out("lab-arith")) if problem.worked.count("=") == OPERATIONS]
        if not 1 <= self.problems <= len(long):
            raise CallError(f"problems: expected 1 to {len(long)}, found {self.problems}")
        rows = [{"number": index, **problem_prompt("lab-arith", index)} for index in long[: self.problems]]
        diffusion: dict[str, Any] = {"length": self.length, "steps": self.length, "block": self.block}
        LLaDASettings(**diffusion)  # raises CallError before anything is written
        with claimed_folder(out, TraceError):
            begun = {*names_in(out)} <= {"traces", "figures", REPORT} and (out / "traces").is_dir()
            begun = begun and {*names_in(out / "traces")} <= {*MODELS}  # one that was ended early
            if not begun and not ((out / "traces").is_dir() and (out / EXPLORER).exists()):
                claim_folder(out, overwrite=None)
            elif not self.overwrite:
                raise CallError(f"{out} already holds a demo; choose another folder, or replace it: --overwrite")
            started = time.monotonic()
            traces, movement = [], []
            for name in MODELS:
                model, folder = sinkscope.load(name), out / "traces" / name
                settings = diffusion if name == "lab-diffusion" else {"length": self.length}
                with sinkscope.recording(model, out=folder, numbered=True, overwrite=self.overwrite):
                    for page_of_earlier in (out / REPORT, out / EXPLORER):  # of the traces that are being replaced
                        page_of_earlier.unlink(missing_ok=True)
                    answers = [sinkscope.generate(model, row["prompt"], **settings).text for row in rows]
                recorded = sinkscope.open_traces(folder)
                traces.append(recorded[0])
                for trace, row, answer in zip(recorded, rows, answers, strict=True):
                    right = "right" if read_result(answer) == row["answer"] else f"wrong ({row['answer']} expected)"
                    numbers = movement_of(trace)
                    movement.append([name, row["number"], right, *numbers.values()])
                    moves = f"{numbers['moves']} moves a head, {numbers['moves, shuffled']} with the steps shuffled"
                    note(f"{name}, problem {row['number']}: {right}; {numbers['sinks']} sinks; {moves}")
            missing: list[str] = []
            figures = draw_figures(traces, out / "figures", compare=True, say=missing.append)
            columns, command = ["model", "problem", "answer", *numbers], f"sinkscope demo --out {out}"
            tables = [Table("Does the main sink move? One row per problem", columns, movement, CAPTION)]
            explore(traces).write_page(out / EXPLORER)  # the page has a link to it
            page = write_page(traces, out / REPORT, figures=figures, tables=tables, notes=missing, command=command)
            note(f"{time.monotonic() - started:.0f} s; the pages, the figures and the traces are in {out}")
        print(page, out / EXPLORER, sep="\n")


def movement_of(trace: Any) -> dict[str, Any]:
    """Return the cells of one trace in the demo's table, by column; `CAPTION` explains them."""
    import numpy as np

    from sinkscope.sinks import SinksIn, find_sinks, is_sink, main_sinks, movement_test, running_mean, track

    sinks = find_sinks(trace)
    tracks = track(sinks)
    test = movement_test(tracks.main, tracks.is_sink)
    largest = movement_test(np.nan_to_num(sinks.columns, nan=-1).argmax(axis=-1))
    averaged: Any = "–"
    if not trace.causal:
        columns = running_mean(sinks.columns)
        there = is_sink(columns)
        averaged = f"{movement_test(main_sinks(columns, there), SinksIn(there), shuffles=1).moves_per_head:.2f}"
    return {
        "sinks": len(sinks),
        "heads": test.heads,
        "moves": f"{test.moves_per_head:.2f}",
        "swaps": f"{test.swaps_per_head:.2f}",
        "moves, shuffled": _with_range(test.null_moves, ".2f"),
        "moves, averaged": averaged,
        "drift": f"{test.drift_per_step:+.3f}",
        "drift, shuffled": _with_range(test.null_drift, "+.3f") if test.blocks > 1 else "–",
        "largest": f"{largest.moves_per_head:.2f}",
        "largest, shuffled": _with_range(largest.null_moves, ".2f"),
    }


def _with_range(null: tuple[float, float, float], form: str) -> str:
    return "{} ({} to {})".format(*(format(value, form) for value in null))
