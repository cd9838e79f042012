"""What do caches save, and what do they cost, on the lab's diffusion model with worked examples in the prompt?

Claim     Keys and values may be kept from step to step: 5 × fewer multiply-adds and 3 × the tokens per second of plain sampling, at an
          accuracy within a point; and which stored keys are read matters at an equal budget.
Command   python experiments/caches.py --work DIR --out results/caches/lab-diffusion.json [--problems 512] [--compared 256]
          The same command goes on where it stopped.
Cost      half a minute of one core a batch of 16 problems and plain sampling, a fifth of it a policy.
Rule      Written down before the run. Every policy writes the same batches in turn, in one process with one thread, so that the machine's
          other work falls on all of them alike; seconds are those of the processor. A policy is within a point where the lower end of
          the 95 % interval of its accuracy minus plain sampling's, paired by problem, is above −1 point. Of two ways to choose keys at a
          budget, one is better where the interval of their paired difference leaves out 0 after Holm's correction. After a look: `sinks`
          also holds the nearest keys, which the others lack, so that `top` against `no-sinks` tells what sinks alone are worth.
Found     docs/caches.md
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from _settings import SETTINGS, made_by

import sinkscope
from sinkscope.evaluation.paired_tests import holm, paired_difference, wilson_interval
from sinkscope.evaluation.tasks import find_task

BATCH, SHOTS = 16, 5
MAIN = [
    ("none", 0.0),
    ("fast-dllm-dual", 0.0),
    ("fast-dllm-prefix", 0.0),
    ("dkv-decode", 0.0),
    ("sparse-dllm", 0.0),
    ("block:every=4", 0.0),
    ("block:fresh=changed", 0.0),
    ("none", 0.9),
    ("fast-dllm-dual", 0.9),
    ("fast-dllm-prefix", 0.9),
]
"""Policies and thresholds of parallel decoding."""
KEEPS = ("sinks", "top", "no-sinks", "norm", "random", "first", "window")
BUDGETS = (16, 64)
COMPARED = [(f"block:keep={keep},budget={budget}", 0.0) for budget in BUDGETS for keep in KEEPS]


def name_of(policy: str, threshold: float) -> str:
    """Return the name of an arm."""
    return f"{policy}, threshold {threshold:g}" if threshold else policy


def write(model: Any, task: Any, numbers: range, policy: str, threshold: float) -> dict[str, Any]:
    """Write the answers to some problems, and return what they were and cost."""
    problems = task.problems()
    prompts = [model.encode(task.prompt(problems[number], number, SHOTS)) for number in numbers]
    began = time.process_time()
    found = sinkscope.generate(model, prompts, cache=policy, threshold=threshold, **SETTINGS["lab-diffusion"])
    seconds = time.process_time() - began
    return {
        "seconds": seconds,
        "correct": [int(task.score(problems[number], one.text).correct) for number, one in zip(numbers, found, strict=True)],
        "tokens": [one.tokens[one.prompt_length :].tolist() for one in found],
        "canvas": [len(one.tokens) for one in found],
        "work": [
            {name: getattr(one.work, name) for name in ("forwards", "rows", "projections", "attention", "mlp", "vocabulary", "total")}
            for one in found
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--compared", type=int, default=256, help="problems on which ways to choose keys are compared")
    given = parser.parse_args()
    torch.set_num_threads(1)
    head = made_by()
    model, task = sinkscope.load("lab-diffusion", dtype=torch.bfloat16), find_task("lab-arith", {})
    given.work.mkdir(parents=True, exist_ok=True)
    write(model, task, range(2), "fast-dllm-dual", 0.0)  # warm
    for first in range(0, given.problems, BATCH):
        for policy, threshold in [*MAIN, *(COMPARED if first < given.compared else [])]:
            item = given.work / f"{first:05d}-{name_of(policy, threshold)}.json"
            if not item.exists():
                done = write(model, task, range(first, min(first + BATCH, given.problems)), policy, threshold)
                item.with_suffix(".part").write_text(json.dumps(done))
                item.with_suffix(".part").replace(item)
        print(f"{min(first + BATCH, given.problems)} of {given.problems}", flush=True)
        document = {**head, **told(given.work), "model": model.card.as_dict(), "settings": SETTINGS["lab-diffusion"]}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(document, indent=1) + "\n")


def told(work: Path) -> dict[str, Any]:
    """Return the table of what was written so far."""
    arms = {name_of(*arm): read(work, name_of(*arm)) for arm in [*MAIN, *COMPARED]}
    plain = arms["none"]
    rows = {name: row(batches, plain) for name, batches in arms.items() if batches}
    pairs = {}
    for budget in BUDGETS:
        names = {keep: name_of(f"block:keep={keep},budget={budget}", 0.0) for keep in KEEPS}
        for keep in KEEPS[1:]:
            one, other = arms[names["sinks"]], arms[names[keep]]
            shared = sorted(one.keys() & other.keys())
            if shared:
                change = paired_difference(outcomes(one, shared), outcomes(other, shared))
                pairs[f"sinks − {keep}, budget {budget}"] = change
    adjusted = holm([change.p_value for change in pairs.values()])
    looked = {}  # after a look: `sinks` has a window that the others lack, so that only these two differ in sinks alone
    for budget in BUDGETS:
        one, other = (arms[name_of(f"block:keep={keep},budget={budget}", 0.0)] for keep in ("top", "no-sinks"))
        if shared := sorted(one.keys() & other.keys()):
            looked[f"top − no-sinks, budget {budget}"] = paired_difference(outcomes(one, shared), outcomes(other, shared))
    versions = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    return {
        "shots": SHOTS,
        "batch": BATCH,
        "versions": versions,
        "canvas": [
            min(size for one in plain.values() for size in one["canvas"]),
            max(size for one in plain.values() for size in one["canvas"]),
        ],
        "rows": rows,
        "keys_after_a_look": {
            name: {"difference": change.mean, "interval": [change.low, change.high], "p": change.p_value} for name, change in looked.items()
        },
        "keys": {
            name: {"difference": change.mean, "interval": [change.low, change.high], "p": change.p_value, "p_holm": p}
            for (name, change), p in zip(pairs.items(), adjusted, strict=True)
        },
    }


def points(row: dict[str, Any]) -> str:
    """Return a difference of accuracies with its interval, in points."""
    return " … ".join(f"{100 * value:+.1f}" for value in row["interval"]).join((f"{100 * row['difference']:+.1f} (", ")"))


def tables(document: dict[str, Any]) -> list[str]:
    """Return the lines of the tables of docs/caches.md."""
    rows = document["rows"]
    lines = ["| policy | accuracy | minus plain, points | same answers | multiply-adds | tokens a second |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        if "keep=" not in name:
            told = "plain sampling" if name == "none" else name.replace("none, ", "no cache, ").replace("threshold", "`threshold`")
            head, comma, tail = told.partition(",")
            head = head if head in ("plain sampling", "no cache") else f"`{head}`"
            ratios = f"1 / {row['work_ratio']:.1f} | × {row['speed_ratio']:.1f} |"
            lines.append(f"| {head}{comma}{tail} | {row['accuracy']:.3f} | {points(row)} | {row['same_answers']:.3f} | {ratios}")
    lines += ["", f"| keys read outside of the block | {' | '.join(f'budget {budget}' for budget in BUDGETS)} |", "|---|---|---|"]
    for keep in KEEPS:
        cells = [rows[name_of(f"block:keep={keep},budget={budget}", 0.0)] for budget in BUDGETS]
        lines.append(f"| `{keep}` | " + " | ".join(f"{cell['accuracy']:.3f}, {points(cell)}" for cell in cells) + " |")
    return lines


def read(work: Path, name: str) -> dict[int, dict[str, Any]]:
    """Return the batches of an arm by the number of their first problem."""
    return {int(path.name[:5]): json.loads(path.read_text()) for path in sorted(work.glob("*.json")) if path.stem[6:] == name}


def outcomes(batches: dict[int, dict[str, Any]], chosen: list[int]) -> list[int]:
    """Return which problems were solved."""
    return [one for first in chosen for one in batches[first]["correct"]]


def row(batches: dict[int, dict[str, Any]], plain: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return one row of the table: an arm beside plain sampling of the same problems."""
    shared = sorted(batches.keys() & plain.keys())
    mine, theirs = outcomes(batches, shared), outcomes(plain, shared)
    change = paired_difference(mine, theirs)
    pairs = [pair for first in shared for pair in zip(batches[first]["tokens"], plain[first]["tokens"], strict=True)]
    same = sum(one == other for pair in pairs for one, other in zip(*pair, strict=True))

    def sums(arm: dict[int, dict[str, Any]]) -> dict[str, int]:
        return {name: sum(one[name] for first in shared for one in arm[first]["work"]) for name in arm[shared[0]]["work"][0]}

    work, before = sums(batches), sums(plain)
    seconds, plain_seconds = (sum(arm[first]["seconds"] for first in shared) for arm in (batches, plain))
    return {
        "problems": len(mine),
        "accuracy": sum(mine) / len(mine),
        "accuracy_interval": list(wilson_interval(sum(mine), len(mine))),
        "difference": change.mean,
        "interval": [change.low, change.high],
        "within_a_point": change.low > -0.01,
        "same_tokens": same / sum(len(one) for one, _ in pairs),
        "same_answers": sum(one == other for one, other in pairs) / len(pairs),
        "work_ratio": before["total"] / work["total"],
        "speed_ratio": plain_seconds / seconds,
        "tokens_per_second": sum(len(one) for one, _ in pairs) / seconds,
        "work_per_problem": {name: value / len(mine) for name, value in work.items()},
    }


if __name__ == "__main__":
    main()
