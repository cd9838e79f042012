"""How recording grows: time and memory against canvas length, layers, steps and prompts, with fitted exponents and a
plot.

One axis is varied at a time around a small bidirectional Llama with random weights (4 layers, width 256, 8 heads,
canvas of 256 tokens, 2 steps, 1 prompt); each point is a plain and a recorded generation, interleaved. An exponent is
the slope of the logarithms, over all points of an axis. `--what time,memory` takes one of the two, `--plot FILE.png`
draws what was measured.

The row `gsm8k` says what recording all of GSM8K on LLaDA-8B would need. It is extrapolated, not measured: forwards are
counted, hours are the floating-point operations of a forward over the rate measured here (and over the rate given by
--tflops), disk is what a head and a position take in each step, measured here as the difference between two traces,
times their number.
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _measuring import extra_memory, flags, interleaved, random_model, show

WRITTEN = 64


@dataclass(frozen=True)
class Shape:
    """What is varied."""

    length: int = 256
    layers: int = 4
    steps: int = 2
    prompts: int = 1


AXES = {"length": (128, 256, 512, 1024), "layers": (2, 4, 8, 16), "steps": (1, 2, 4, 8), "prompts": (1, 2, 4, 8)}


def runs_of(shape: Shape, keep: Any = "columns") -> dict[str, Callable[[], int]]:
    """A plain and a recorded generation; both return the bytes they left on disk."""
    import sinkscope

    model = random_model(256, 768, shape.layers, 8, max(AXES["length"]))
    prompt = torch.arange(shape.length - WRITTEN) % 400 + 4
    prompts = [prompt.roll(number) for number in range(shape.prompts)]

    def plain() -> int:
        sinkscope.generate(model, prompts, length=WRITTEN, steps=shape.steps, block=WRITTEN)
        return 0

    def recorded() -> int:
        with tempfile.TemporaryDirectory() as folder:
            with sinkscope.recording(model, out=Path(folder) / "trace", keep=keep):
                plain()
            return sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors"))

    return {"plain": plain, "recorded": recorded}


def prepare(kind: str, *shape: int) -> Callable[[], Any]:
    """For a fresh process: everything loaded, one small run behind it."""
    torch.set_num_threads(2)
    runs_of(Shape(length=80, layers=1))[kind]()
    return runs_of(Shape(*shape))[kind]


def slope(points: list[tuple[float, float]]) -> float:
    """Exponent of y ∝ x^e, by least squares on the logarithms."""
    logs = [(math.log(x), math.log(max(y, 1e-9))) for x, y in points]
    mean_x, mean_y = (sum(one[axis] for one in logs) / len(logs) for axis in (0, 1))
    return round(sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs), 2)


def measure(axis: str, value: int, given: Any) -> dict[str, Any]:
    """One point."""
    shape = replace(Shape(), **{axis: value})
    row: dict[str, Any] = {"axis": axis, "value": value}
    runs = runs_of(shape)
    if "time" in given.what:
        seconds = interleaved(runs, given.rounds)
        row |= {f"{name}_seconds": round(sorted(taken)[len(taken) // 2], 4) for name, taken in seconds.items()}
        row["recorded_over_plain"] = round(row["recorded_seconds"] / row["plain_seconds"], 3)
    row["disk_bytes"] = runs["recorded"]()
    if "memory" in given.what:
        numbers = (shape.length, shape.layers, shape.steps, shape.prompts)
        row |= {f"{name}_extra_mib": round(extra_memory(prepare, name, *numbers), 2) for name in runs}
    return row


def gsm8k(tflops: float) -> dict[str, Any]:
    """What all of GSM8K on LLaDA-8B would need, extrapolated from a forward call and a trace measured here."""
    from recording_overhead import model_of as hundred_million

    questions, steps, canvas, layers, heads, width, parameters = 1319, 256, 1024 + 256, 32, 32, 4096, 8.0e9
    model = hundred_million()
    tokens = torch.full((1, 512), model.card.mask_id)
    taken = []
    with torch.no_grad():
        for _ in range(4):
            started = time.perf_counter()
            model.network.model(input_ids=tokens, use_cache=False)
            taken.append(time.perf_counter() - started)
    body = model.card.parameters - 2 * model.card.vocabulary * model.card.hidden_size
    rate = operations(512, body, 12, 768) / min(taken)
    forwards = questions * steps
    work = forwards * operations(canvas, parameters, layers, width)
    columns, top = per_head("columns", canvas / Shape().length), per_head("top", 1)
    return {
        "axis": "gsm8k",
        "kind": "extrapolated",
        "forwards": forwards,
        "measured_gflops": round(rate / 1e9, 1),
        "hours_here": round(work / rate / 3600),
        f"hours_at_{tflops:g}_tflops": round(work / (tflops * 1e12) / 3600, 1),
        "disk_columns_tib": round(forwards * layers * heads * columns / 2**40, 2),
        "disk_top8_gib": round(forwards * layers * heads * top / 2**30, 1),
        "disk_statistics": "megabytes, whatever the number of questions",
    }


def per_head(keep: str, longer: float) -> float:
    """Bytes that a head of a layer takes in a step, from two traces with 2 and 4 layers; ``longer`` is what S is
    multiplied by.
    """
    few, many = (runs_of(Shape(layers=layers), keep)["recorded"]() for layers in (2, 4))
    return (many - few) / (2 * 8 * Shape().steps) * longer


def operations(length: int, parameters: float, layers: int, width: int) -> float:
    """Floating-point operations of a forward call: the weights, and both products of attention."""
    return 2 * length * parameters + 4 * layers * length**2 * width


def draw(rows: list[dict[str, Any]], to: str) -> None:
    """Time against each axis, plain and recorded."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes = [axis for axis in AXES if any(row["axis"] == axis and "plain_seconds" in row for row in rows)]
    figure, panels = pyplot.subplots(1, len(axes), figsize=(3.2 * len(axes), 3), squeeze=False, layout="constrained")
    for panel, axis in zip(panels[0], axes, strict=True):
        own = [row for row in rows if row["axis"] == axis and isinstance(row["value"], int)]
        for name, marker in (("plain", "o"), ("recorded", "s")):
            points = [(row["value"], 1000 * row[f"{name}_seconds"]) for row in own]
            panel.loglog(*zip(*points, strict=True), marker=marker, label=f"{name}, exponent {slope(points)}")
        panel.set(xlabel="canvas length, tokens" if axis == "length" else axis, ylabel="milliseconds")
        values = [row["value"] for row in own]
        panel.set_xticks(values, map(str, values))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        panel.legend(fontsize=7)
    figure.savefig(to, dpi=150)


def main() -> None:
    given = flags(axes=(*AXES, "gsm8k"), rounds=3, what=("time", "memory"), plot="", tflops=200.0)
    torch.set_num_threads(2)
    rows: list[dict[str, Any]] = []
    for axis in (name for name in AXES if name in given.axes):
        own = [measure(axis, value, given) for value in AXES[axis]]
        names = [name for name in own[0] if name.endswith(("_seconds", "_mib", "disk_bytes"))]
        exponents = {name: slope([(row["value"], row[name]) for row in own]) for name in names}
        rows += [*own, {"axis": axis, "value": "exponent", **exponents}]
    if given.plot:
        draw(rows, given.plot)
    if "gsm8k" in given.axes:
        rows.append(gsm8k(given.tflops))
    for name in {name for row in rows for name in row}:
        for row in rows:
            row.setdefault(name, None)
    show(rows, given.json)


if __name__ == "__main__":
    main()
