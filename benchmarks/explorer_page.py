"""The explorer's page: how long it takes to write, how large it is, its first paint, and the time of a frame while scrubbing.

    python benchmarks/explorer_page.py [--json] [--steps 256 --layers 32 --heads 32 --positions 512] [--traces FOLDER…]

Without --traces it shows a trace of random columns with sinks that move. It needs Chromium. Times are of this machine, in milliseconds;
a frame is what the main thread does for one step: scripts, styles, layout and painting. At 60 frames a second there are 16.7 of them.
"""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _measuring import show

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "figures"))

from browser import Browser, find_browser

from sinkscope.figures.explorer import explore
from sinkscope.traces import TraceWriter, open_trace

PLAY = """(async () => {
  const slider = document.querySelector('#step'), last = Number(slider.max);
  for (let step = 0; step <= last; step++) {
    slider.value = step; slider.dispatchEvent(new Event('input'));
    await new Promise(requestAnimationFrame);
  }
  return last + 1;
})()"""


def write_trace(folder: Path, steps: int, layers: int, heads: int, positions: int) -> None:
    """Write a trace of one sink a head, which moves every tenth step, over random columns."""
    rng = np.random.default_rng(0)
    prompt = positions // 2
    vocabulary = {str(token): f" w{token}" for token in range(1, 300)} | {"0": "<|mask|>"}
    manifest = {
        "model": {"name": "random", "family": "llada", "weight_hash": "0"},
        "causal": False, "prompt_length": prompt, "mask_id": 0, "layers": [f"layers.{layer}" for layer in range(layers)], "heads": heads,
        "kv_heads": heads, "level": "columns", "vocabulary": vocabulary,
    }  # fmt: skip
    folder.mkdir(parents=True)
    writer = TraceWriter(folder, manifest)
    final = rng.integers(1, 300, positions).astype(np.int32)
    base = rng.gamma(0.3, size=(layers, heads, positions)).astype(np.float32)
    for step in range(steps):
        front = prompt + step * (positions - prompt) // steps
        columns = base * rng.uniform(0.97, 1.03, base.shape).astype(np.float32)
        place = (np.arange(layers)[:, None] * 7 + np.arange(heads) * 3 + 11 * (step // 10)) % positions
        np.put_along_axis(columns, place[..., None], np.float32(positions / 40), axis=-1)
        columns *= positions / columns.sum(axis=-1, keepdims=True)
        tokens = np.where(np.arange(positions) < front, final, 0).astype(np.int32)
        written = np.full(positions, -1, np.int32)
        written[front] = final[front]
        masked = (tokens == 0).astype(np.uint8)
        writer.add({"tokens": tokens, "masked": masked, "written": written, "lengths": np.int32(positions)[()], "column_sums": columns})
    writer.close(complete=True)


def measure(page: Path) -> dict[str, float]:
    """Return first paint and frames of a page."""
    with Browser() as browser:
        shown = browser.open(page.as_uri(), 1400, 1000)
        paint = shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        shown.call("Performance.enable")
        shown.evaluate(PLAY)
        before = {one["name"]: one["value"] for one in shown.call("Performance.getMetrics")["metrics"]}
        started = time.perf_counter()
        frames = shown.evaluate(PLAY)
        elapsed = time.perf_counter() - started
        after = {one["name"]: one["value"] for one in shown.call("Performance.getMetrics")["metrics"]}
        spent = {name: 1000 * (after[name] - before[name]) / frames for name in ("TaskDuration", "ScriptDuration", "LayoutDuration")}
        found = {"first_paint_ms": paint, "frame_ms": spent["TaskDuration"], "frame_script_ms": spent["ScriptDuration"]}
        return found | {"frames_a_second": frames / elapsed, "complaints": len(shown.complaints())}


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in (("steps", 256), ("layers", 32), ("heads", 32), ("positions", 512)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--traces", nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if find_browser() is None:
        sys.exit("expected Chromium on this machine, found none: apt-get install chromium, or set CHROMIUM")
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(one) for one in given.traces] or [Path(place) / "trace"]
        if not given.traces:
            write_trace(folders[0], given.steps, given.layers, given.heads, given.positions)
        started = time.perf_counter()
        explorer = explore([open_trace(folder) for folder in folders])
        page = explorer.write_page(Path(place) / "page.html")
        row = {
            "traces": ", ".join(
                f"{one['steps']} × {one['layers']} × {one['heads']} × {one['positions']}" for one in explorer.document["traces"]
            ),
            "write_s": time.perf_counter() - started,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
            "data_mb": explorer.tiles.size / 1e6,
            "page_mb": page.stat().st_size / 1e6,
            **measure(page),
        }
    show([{name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}], as_json=given.json)


if __name__ == "__main__":
    main()
