"""The product around the network: `sinkscope sinks` as a user runs it, and GSM8K's prompts and scores.

``--what sinks``: start-up included, on a trace of 128 steps, 6 layers and 6 heads. ``--what evaluation``: seconds to
prepare GSM8K's 1,319 prompts with shots, to score 1,319 stored answers, and to compare them; GSM8K_DATA=FOLDER uses the
real test.jsonl and train.jsonl, without it made-up rows of the same number and size. No model is loaded.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _measuring import flags, show

REPEATS = 5
TEST, TRAIN = 1319, 7473


def sinks() -> list[dict[str, Any]]:
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
    return rows


def made_up(folder: Path) -> Path:
    rng = random.Random(0)
    for name, count in (("test", TEST), ("train", TRAIN)):
        rows = []
        for _ in range(count):
            words = " ".join(rng.choice(("apples", "costs", "3", "twice", "day", "how", "many")) for _ in range(45))
            rows.append({"question": f"{words}?", "answer": f"{words}\n{words}\n#### {rng.randrange(10**4)}"})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def evaluation() -> list[dict[str, Any]]:
    from sinkscope.evaluation.paired_tests import paired_difference
    from sinkscope.evaluation.tasks import find_task

    with tempfile.TemporaryDirectory() as box:
        folder = Path(os.environ["GSM8K_DATA"]) if "GSM8K_DATA" in os.environ else made_up(Path(box))
        rows = []
        for name in ("gsm8k", "gsm8k_cot"):
            started = time.perf_counter()
            task = find_task(name, {"gsm8k": folder})
            problems = task.problems()
            prompts = [task.prompt(problem, index, task.shots) for index, problem in enumerate(problems)]
            prepared = time.perf_counter()
            answers = [
                problem["answer"] if index % 3 else problems[index - 1]["answer"]
                for index, problem in enumerate(problems)
            ]
            scores = [task.score(problem, answer).correct for problem, answer in zip(problems, answers, strict=True)]
            scored = time.perf_counter()
            paired_difference(scores, [True] * len(scores))
            row = {"task": name, "prompts": len(prompts), "prepare_s": prepared - started, "score_s": scored - prepared}
            rows.append({**row, "compare_s": time.perf_counter() - scored})
        return [{key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()} for row in rows]


def main() -> None:
    given = flags(what=("sinks", "evaluation"))
    for name in given.what:
        show({"sinks": sinks, "evaluation": evaluation}[name](), given.json)


if __name__ == "__main__":
    main()
