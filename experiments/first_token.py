"""Has lab-autoregressive a sink on its first token, as large autoregressive models have?

Claim     Autoregressive models collect attention on their first token (arXiv 2309.17453, 2410.10781).
Command   python experiments/first_token.py [--problems 24] [--work DIR]
Cost      two minutes on two cores; a rerun with the same --work reads the traces that are there.
Expected  A large share of each query's attention on the first token, in many heads.
Found     None: 0.23 % on average and 0.38 % in the highest head, where equal shares would be 0.37 %. Numbers: benchmarks/RESULTS.md.
"""

import tempfile
from pathlib import Path

import numpy as np
from _settings import Arguments, run_script

import sinkscope
from sinkscope.lab.prompts import problem_prompts


def record(problems: int, folder: Path) -> None:
    model = sinkscope.load("lab-autoregressive")
    with sinkscope.recording(model, out=folder, numbered=True):
        for problem in problem_prompts(count=problems):
            sinkscope.generate(model, problem["prompt"], length=64)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--work", type=Path, default=None, help="keeps the traces here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.work or Path(scratch)) / "lab-autoregressive"
        if not folder.exists():
            record(arguments.problems, folder)
        rows = [
            trace.last_query[:] for trace in sinkscope.open_traces(folder)
        ]  # each [step, layer, head, key]: the newest query's row
    by_head = np.mean([row[..., 0].mean(axis=0) for row in rows], axis=0)
    equal = np.mean([(1 / (~np.isnan(row[:, 0, 0])).sum(axis=-1)).mean() for row in rows])
    print(f"share of the newest query's attention on the first token, {len(rows)} problems:")
    print(
        f"mean {by_head.mean():.4f}, lowest head {by_head.min():.4f}, highest {by_head.max():.4f}; equal shares {equal:.4f}"
    )
    print(f"heads above 0.3: {(by_head > 0.3).sum()} of {by_head.size}")


if __name__ == "__main__":
    run_script(main)
