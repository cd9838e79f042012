"""Plain sampling now against another checkout: processor seconds of `generate` without a cache, one thread, in turns.

Two processes, one for each checkout, write the same answers in turns; the order within a round changes from round to
round. Memory that is
freed stays with the process: else the kernel's share differs by a quarter between two processes of the same code. A row
of the result is a
workload: a single short prompt, where the loop around the network shows most, and a batch behind five worked problems.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from _measuring import flags, show

WORKLOADS = {"one prompt": (1, 0, 64, 2), "16 prompts, five shots": (16, 5, 4, 1)}
"""Prompts, worked problems in front of each, tokens to write, and generations that are timed together."""
WORKER = """
import hashlib, sys, time
sys.path.insert(0, sys.argv[1])
prompts, shots, length, times = map(int, sys.argv[2:])
import torch
import sinkscope
assert sinkscope.__file__.startswith(sys.argv[1]), sinkscope.__file__
from sinkscope.lab.prompts import problem_prompt
torch.set_num_threads(1)
model = sinkscope.load("lab-diffusion")
asked = [problem_prompt("lab-arith", number, shots)["prompt"] for number in range(prompts)]
for line in sys.stdin:
    began = time.process_time()
    for _ in range(times):
        found = sinkscope.generate(model, asked, length=length, steps=length, block=min(length, 16))
    seconds = time.process_time() - began
    print(seconds, hashlib.sha256(str([one.tokens.tolist() for one in found]).encode()).hexdigest(), flush=True)
"""


def seconds_of(
    checkouts: dict[str, Path], workload: tuple[int, ...], rounds: int
) -> tuple[dict[str, list[float]], bool]:
    """Return the processor seconds of each round by checkout, after one uncounted round, and whether all answers were
    the same.
    """
    environment = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    workers = {
        name: subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path / "src"), *map(str, workload)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name, path in checkouts.items()
    }
    found: dict[str, list[float]] = {name: [] for name in checkouts}
    wrote = set()
    for number in range(rounds + 1):
        for name in list(checkouts)[:: 1 if number % 2 else -1]:
            stream = workers[name]
            assert stream.stdin is not None and stream.stdout is not None
            print(file=stream.stdin, flush=True)
            seconds, answers = stream.stdout.readline().split()
            wrote.add(answers)
            if number:
                found[name].append(float(seconds))
    for one in workers.values():
        one.communicate()
    return found, len(wrote) == 1


def main() -> None:
    given = flags(before="", rounds=12)
    if not (Path(given.before or "nowhere") / "src" / "sinkscope").is_dir():
        sys.exit(
            f"error: argument --before: expected another checkout of this repository, found {given.before or 'none'}"
        )
    checkouts = {"before": Path(given.before).resolve(), "now": Path(__file__).parents[1]}
    rows = []
    for name, workload in WORKLOADS.items():
        seconds, same = seconds_of(checkouts, workload, given.rounds)
        over = [now / before for now, before in zip(seconds["now"], seconds["before"], strict=True)]
        row = {"workload": name, "rounds": given.rounds, "now_over_before": round(statistics.median(over), 4)}
        row |= {"least": round(min(over), 4), "largest": round(max(over), 4)}
        row |= {
            "of_medians": round(statistics.median(seconds["now"]) / statistics.median(seconds["before"]), 4),
            "same_answers": same,
        }
        rows.append(row)
    show(rows, given.json)


if __name__ == "__main__":
    main()
