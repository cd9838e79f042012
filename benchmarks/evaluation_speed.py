"""Seconds to prepare GSM8K's 1,319 prompts with shots and to score 1,319 stored answers, and to tell what they show.

GSM8K_DATA=FOLDER uses the real test.jsonl and train.jsonl; without it, made-up rows of the same number and size. No model is loaded.
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path

from _measuring import show

from sinkscope.evaluation.paired_tests import paired_difference
from sinkscope.evaluation.tasks import find_task

TEST, TRAIN = 1319, 7473


def made_up(folder: Path) -> Path:
    rng = random.Random(0)
    for name, count in (("test", TEST), ("train", TRAIN)):
        rows = []
        for _ in range(count):
            words = " ".join(rng.choice(("apples", "costs", "3", "twice", "day", "how", "many")) for _ in range(45))
            rows.append({"question": f"{words}?", "answer": f"{words}\n{words}\n#### {rng.randrange(10**4)}"})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def main() -> None:
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
        show(
            [
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
                for row in rows
            ]
        )


if __name__ == "__main__":
    main()
