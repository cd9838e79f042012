"""Rows of gpu.py about replayed steps: generations of one shape, plain, recorded and hidden, step by step and as graphs."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _gpu_model import Clock

SHAPES = ((1, 1024), (8, 1024), (1, 4096), (4, 4096), (1, 256), (8, 256))
"""Batch and length of the canvas; of another --length or --batch only that one."""
KINDS = {  # level of the recording, and rule
    "plain": (None, None),
    "recorded": ("columns", None),
    "hidden": ("columns", "top:1"),
    "hidden, nothing recorded": (None, "top:1"),
    "random keys hidden": ("columns", "random:1"),
    "top": ("top", None),
    "statistics": ("statistics", None),
}
STEP_BY_STEP = ("plain", "recorded", "hidden")
"""Kinds that run without graphs too; the others would say little more, and statistics of large canvases take long."""
SKIPPED = 4  # steps until the first replay is behind: two run plainly, one is captured and compared


def one_run(model: Any, given: Any, batch: int, length: int, keep: Any, rule: Any, graphs: bool) -> dict[str, Any]:
    """One generation of a token a step: milliseconds of a step by the device's clock, and whether it was replayed."""
    import sinkscope
    from sinkscope.interventions import parse_rule

    steps = min(given.steps, 16 if batch * length <= 8192 else 10, length // 2)
    prompts, clock = [list(range(4, 4 + length - steps))] * batch, Clock(given.device)
    prompts = [[4 + token % 400 for token in prompt] for prompt in prompts]
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, contextlib.ExitStack() as stack:
        if keep is not None:
            stack.enter_context(sinkscope.recording(model, out=Path(folder) / "trace", keep=keep))
        if rule is not None:
            stack.enter_context(parse_rule(rule)(model))
        found = sinkscope.generate(
            model, prompts, length=steps, steps=steps, block=steps, graphs=graphs, on_step=lambda _: clock.mark()
        )
        times = clock.between()[min(SKIPPED, steps - 3) :]
    tokens = torch.stack([one.tokens for one in found])
    return {"ms": median(times), "replayed": found[0].graphs, "tokens": tokens}


def rows(model: Any, given: Any, shapes: Any) -> Iterator[tuple[str, Any]]:
    """For each shape its kinds, first without graphs, and what measures each; ratios are over the rows before."""
    for batch, length in shapes:
        known: dict[tuple[str, bool], dict[str, Any]] = {}
        for kind, (keep, rule) in (*KINDS.items(), ("plain again", KINDS["plain"])):
            for graphs in (False, True) if kind in STEP_BY_STEP else (True,):

                def measure(
                    kind: str = kind, keep: Any = keep, rule: Any = rule, graphs: bool = graphs, batch: int = batch,
                    length: int = length, known: Any = known,
                ) -> dict[str, Any]:  # fmt: skip
                    if given.device.startswith("cuda"):
                        torch.cuda.reset_peak_memory_stats()
                    run, before = (
                        one_run(model(), given, batch, length, keep, rule, graphs),
                        known.get(("plain", graphs)),
                    )
                    known.setdefault((kind, graphs), run)
                    row = {"ms": round(run["ms"], 3), "replayed": run["replayed"]}
                    if before is not None and kind == "plain again":  # how far the machine has drifted
                        return row | {"over_before": round(run["ms"] / before["ms"], 4)}
                    for name, base in {
                        "over_plain": ("plain", False), "over_plain_graph": ("plain", True),
                        "over_recorded_same": ("recorded", graphs), "over_without_graph": (kind, False),
                    }.items():  # fmt: skip
                        if base in known:
                            row[name] = round(run["ms"] / known[base]["ms"], 4)
                    if graphs and (kind, False) in known:
                        row["same_tokens"] = bool(torch.equal(run["tokens"], known[kind, False]["tokens"]))
                    if given.device.startswith("cuda"):
                        row["peak_mib"] = round(torch.cuda.memory_stats()["active_bytes.all.peak"] / 2**20, 1)
                    return row

                name = f"graphs: {kind}{', replayed' if graphs else ''}, batch {batch}, S = {length}"
                yield name, measure
