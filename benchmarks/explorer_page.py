"""The explorer: time and memory of writing it as a page and as a folder, its first paint, and the time of a step while
scrubbing.

    python benchmarks/explorer_page.py [--json] [--steps 256 --layers 32 --heads 32 --positions 512] [--traces FOLDER…]

Without --traces it shows a trace of random columns with sinks that move. It needs Chromium. Times are of this machine.

Writing is the command `sinkscope explore` in a process of its own, its start included; peak memory is that process's
resident set.

A step is the time from moving the slider to the end of the frame that shows it, by the clock.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _measuring import show

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "figures"))

from browser import Browser, find_browser

from sinkscope.traces import TraceWriter, open_trace

PLAY = """(async () => {
  const slider = document.querySelector('#step'), last = Number(slider.max), spent = [], begun = performance.now();
  for (let step = 0; step <= last; step++) {
    const started = performance.now();
    slider.value = step; slider.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    spent.push(performance.now() - started);
  }
  return [spent, performance.now() - begun];
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
        writer.add(
            {
                "tokens": tokens,
                "masked": masked,
                "written": written,
                "lengths": np.int32(positions)[()],
                "column_sums": columns,
            }
        )
    writer.close(complete=True)


def write(folders: list[Path], out: Path) -> tuple[float, float]:
    """Run `sinkscope explore`; return its seconds and the largest resident set of any such run so far, in MB."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "sinkscope", "explore", *map(str, folders), "--out", str(out)],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000


def measure(page: Path) -> dict[str, float]:
    """Return first paint and frames of a page."""
    with Browser() as browser:
        shown = browser.open(page.as_uri(), 1400, 1000)
        paint = shown.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        shown.evaluate(PLAY)
        spent, whole = shown.evaluate(PLAY)
        parts = {f"step_p{part}_ms": float(np.percentile(spent, part)) for part in (50, 95)}
        steps = 1000 * len(spent) / whole
        return {"first_paint_ms": paint, **parts, "steps_a_second": steps, "complaints": len(shown.complaints())}


def megabytes(folders: list[Path]) -> float:
    """Return the size of all files of some folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()) / 1e6


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
        traces, out, page = (
            [open_trace(folder) for folder in folders],
            Path(place) / "folder",
            Path(place) / "page.html",
        )
        folder_s, folder_memory = write(folders, out)
        page_s, page_memory = write(folders, page)
        row = {
            "traces": ", ".join(" × ".join(map(str, one.column_sums.shape)) for one in traces),
            "trace_mb": megabytes(folders),
            "folder_s": folder_s,
            "folder_peak_mb": folder_memory,
            "folder_mb": megabytes([out]),
            "page_s": page_s,
            "folder_and_page_peak_mb": page_memory,
            "page_mb": page.stat().st_size / 1e6,
            **measure(page),
        }
    show(
        [{name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}],
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
