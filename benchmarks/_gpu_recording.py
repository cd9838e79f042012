"""Rows of gpu.py about recording: forward calls in one recording, as a generation makes them, timed inside it and where
it closes.
"""

import contextlib
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from _gpu_model import Clock, half_masked, peak, wait

EARLY = 8
"""Steps that wait for no writer, whatever it does: fewer than there is room for."""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        steps_ms: milliseconds of each step, without the first, which opens the trace and compiles.
        drain_s: seconds from the last step's end until the trace is closed.
        seconds: from the second step's begin until the trace is closed.
        written: bytes of the trace.
    """

    steps_ms: list[float]
    drain_s: float
    seconds: float
    written: int


def run(model: Any, given: Any, keep: Any, hide: bool, steps: int) -> Run:
    """Forward calls at full length; ``keep`` None records nothing."""
    import sinkscope

    tokens, clock = half_masked(model, given), Clock(given.device)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, torch.no_grad():
        out = Path(folder) / "trace"
        with contextlib.ExitStack() as stack:
            if keep is not None:
                stack.enter_context(sinkscope.recording(model, out=out, keep=keep))
            if hide:
                stack.enter_context(sinkscope.interventions.HidePositions((5,))(model))
            started = 0.0
            for number in range(steps + 1):
                if number == 1:
                    wait(given.device)
                    started = time.perf_counter()
                    clock.mark()
                model.network.model(input_ids=tokens, use_cache=False)
                if number:
                    clock.mark()
            steps_ms = clock.between()
            ended = time.perf_counter()
        closed = time.perf_counter()
        written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.exists() else 0
    return Run(steps_ms, closed - ended, closed - started, written)


def paths_taken(model: Any, given: Any) -> list[str]:
    """The paths of all layers in one forward call."""
    from sinkscope.attention import Watcher, subscribed

    class Noting(Watcher):
        def __init__(self) -> None:
            self.paths: set[str] = set()

        def watch(self, call: Any, columns: Any) -> None:
            self.paths.add(columns.path)

    noting = Noting()
    with subscribed(model.network, noting), torch.no_grad():
        model.network.model(input_ids=half_masked(model, given), use_cache=False)
    return sorted(noting.paths)


def recorded_time(model: Any, given: Any, keep: str, hide: bool = False) -> dict[str, Any]:
    """Recorded over plain, or, with ``hide``, hiding over recorded; in turns."""
    kinds = {"base": (keep if hide else None, False), "run": (keep, hide)}
    for settings in kinds.values():
        run(model, given, *settings, steps=2)
    found: dict[str, list[Run]] = {name: [] for name in kinds}
    for _ in range(given.rounds):
        for name, settings in kinds.items():
            found[name].append(run(model, given, *settings, steps=given.steps))

    def ratio(part: slice) -> float:
        pairs = zip(found["run"], found["base"], strict=True)
        return round(median(mean(one.steps_ms[part]) / mean(other.steps_ms[part]) for one, other in pairs), 4)

    last = found["run"][-1]
    return {
        "time": ratio(slice(None)),
        "time_early": ratio(slice(0, EARLY)),
        "ms": round(median(mean(one.steps_ms) for one in found["run"]), 3),
        "base_ms": round(median(mean(one.steps_ms) for one in found["base"]), 3),
        "steps": given.steps,
        "drain_s": round(median(one.drain_s for one in found["run"]), 3),
        "written_mb": round(last.written / 1e6, 3),
        "mb_per_s": round(median(one.written / 1e6 / one.seconds for one in found["run"]), 1),
        "path": paths_taken(model, given),
    }


def recorded_memory(model: Any, given: Any) -> dict[str, Any]:
    """Peak memory of the device. Beside the weights of an 8B model the ratio can hardly fail: the MiB say more."""
    kinds = {"plain": (None, False), "recorded": ("columns", False), "hiding": ("columns", True)}
    steps = min(given.steps, 16)  # more than are under way at once
    bytes_of = {
        name: peak(partial(run, model, given, *settings, steps=steps), given.device) for name, settings in kinds.items()
    }
    plain, recorded, hiding = (bytes_of[name] for name in kinds)
    if plain is None or recorded is None or hiding is None:
        return {"memory": None, "extra_mib": None}
    return {
        "memory": round(recorded / plain, 4),
        "extra_mib": round((recorded - plain) / 2**20, 1),
        "hiding_memory": round(hiding / plain, 4),
        "hiding_extra_mib": round((hiding - plain) / 2**20, 1),
        "plain_mib": round(plain / 2**20, 1),
    }


def compiled(model: Any, given: Any) -> dict[str, Any]:
    """Recorded over plain with compiled layers, each in one graph, and how many graphs the steps behind the first ones
    made anew.
    """
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    layers = model.network.model.layers
    try:
        for layer in layers:
            layer.compile(backend=given.backend, fullgraph=True)
        row = recorded_time(model, given, "columns")
        before = counters["stats"]["unique_graphs"]
        run(model, given, "columns", False, steps=4)
        return row | {"graphs": before, "graphs_more": counters["stats"]["unique_graphs"] - before}
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
        torch._dynamo.reset()
