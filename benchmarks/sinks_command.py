"""`sinkscope sinks` as a user runs it, start-up included, on a trace of 128 steps, 6 layers and 6 heads."""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measuring import flags, show

REPEATS = 5


def main() -> None:
    given = flags()
    import sinkscope
    from sinkscope.lab.prompts import problem_prompt

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        model = sinkscope.load("lab-diffusion")
        with sinkscope.recording(model, out=path):
            sinkscope.generate(model, problem_prompt("lab-arith", 0)["prompt"], length=128, steps=128, block=32)
        steps, layers, heads, keys = sinkscope.open_trace(path).column_sums.shape
        for form in ([], ["--json"]):
            seconds = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "sinkscope", "sinks", str(path), *form],
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
                seconds.append(time.perf_counter() - started)
            rows.append(
                {
                    "command": " ".join(["sinkscope sinks TRACE", *form]),
                    "steps": steps,
                    "layers": layers,
                    "heads": heads,
                    "positions": keys,
                    "median_seconds": round(statistics.median(seconds), 2),
                    "largest_seconds": round(max(seconds), 2),
                }
            )
    show(rows, given.json)


if __name__ == "__main__":
    main()
