"""`analyse` on one long synthetic trace: seconds, and how far it raises the peak memory of a fresh process.

The trace has all tensors that a diffusion model leaves: 256 steps, 32 layers, 32 heads and 512 tokens are 537 MB of
column sums, as many of the masked and of the prompt queries' columns, of self-attention and of value and key norms
each.
Sinks are planted in random attention: one that stays and one that moves with the commits in every head. ``--quick``
takes a quarter of the steps.
The choice model is left out: it compares prompts, and here is one.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _measuring import extra_memory, flags, show

SHAPES = {"full": (256, 32, 32, 512), "quarter": (64, 32, 32, 512)}
MASK = 1


def write_trace(folder: Path, steps: int, layers: int, heads: int, width: int) -> None:
    """A trace on disk, step by step, as the recorder writes it."""
    from sinkscope.traces import TraceWriter

    rng = np.random.default_rng(0)
    folder.mkdir()
    writer = TraceWriter(
        folder,
        {
            "causal": False,
            "layers": [f"layer {number}" for number in range(layers)],
            "heads": heads,
            "kv_heads": heads,
            "prompt": "synthetic",
            "prompt_length": width // 2,
            "mask_id": MASK,
            "sampler": {"block": 32},
            "vocabulary": {str(token): f"word{token}" for token in range(2, 100)},
        },
    )
    canvas = np.full(width, MASK, np.int32)
    canvas[: width // 2] = rng.integers(2, 100, width // 2)
    noise = rng.exponential(size=(layers, heads, width)).astype(np.float32)
    for step in range(steps):
        columns = np.roll(noise, 37 * step, axis=-1)
        columns[..., 0] = 40
        columns[..., (width // 2 + step) % width] = 25
        columns *= width / columns.sum(axis=-1, keepdims=True)
        written = np.full(width, -1, np.int32)
        at = width // 2 + step * (width // 2) // steps
        written[at] = 2 + step % 98
        masked = canvas == MASK
        writer.add(
            {
                "tokens": canvas.copy(),
                "masked": masked.astype(np.uint8),
                "written": written,
                "lengths": np.int32(width),
                "column_sums": columns,
                "column_sums_masked": columns * np.float32(masked.mean()),
                "column_sums_prompt": columns * np.float32(0.5),
                "self_attention": columns / np.float32(width),
                "value_norms": 1 + np.roll(noise, step, axis=-1),
                "key_norms": 1 + np.roll(noise, 2 * step, axis=-1),
                "hidden_norms": 1 + noise[:, 0],
            }
        )
        canvas[at] = written[at]
    writer.close(complete=True)


def prepare(folder: str) -> Callable[[], Any]:
    """For a fresh process: everything imported, nothing read. What it took goes beside the trace."""
    import scipy.special
    import scipy.stats  # noqa: F401

    from sinkscope.statistics import analyse
    from sinkscope.traces import open_trace

    def run() -> None:
        started, used = time.perf_counter(), time.process_time()
        found = analyse([open_trace(folder)], choice=False)
        took = {"seconds": round(time.perf_counter() - started, 1), "cpu_seconds": round(time.process_time() - used, 1)}
        Path(folder).with_name("took.json").write_text(json.dumps({**took, "statistics": len(found.statistics)}))

    return run


def main() -> None:
    given = flags(quick=False)
    name = "quarter" if given.quick else "full"
    steps, layers, heads, width = SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        writer = multiprocessing.get_context("spawn").Process(
            target=write_trace, args=(trace, steps, layers, heads, width)
        )
        writer.start()  # a process of its own: a child's peak memory starts at its parent's
        writer.join()
        row = {
            "steps": steps,
            "layers": layers,
            "heads": heads,
            "tokens": width,
            "column_sums_mb": round(steps * layers * heads * width * 4 / 1e6),
            "on_disk_mb": round(sum(path.stat().st_size for path in trace.iterdir()) / 1e6),
            "extra_mib": round(extra_memory(prepare, str(trace))),
            **json.loads((Path(folder) / "took.json").read_text()),
        }
    show([row], given.json)


if __name__ == "__main__":
    main()
