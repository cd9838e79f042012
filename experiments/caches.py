"""What do caches save on the lab's diffusion models, what do they cost, and are sinks among the keys worth reading?

Claim     Keys and values may be kept from step to step: 5 × fewer multiply-adds and 3 × the tokens per second of plain
          sampling, at an accuracy within a point; and at an equal budget of stored keys, sinks are to be kept, filtered
          out, or not counted at all.
Command   python experiments/caches.py PLAN --work DIR --out results/caches/PLAN.json
          PLAN is one of those below. The same command goes on where it stopped; it is `sinkscope compare-caches` with
          fixed arguments.
Cost      half a minute of one core a batch of 16 problems with five shots and plain sampling, a fifth of it a policy;
          without shots a fifth of all that.
Rule      Written down before the run. Policies take turns at each batch, in one process with one thread; seconds are
          the processor's. The rules for accuracy, and the verdict *keep*, *filter* or *discount* on sinks, stand in
          `evaluation/cache_comparison.py`. `sinks` also reads the nearest keys, which the others lack; so `top` against
          `no-sinks` tells what sinks alone are worth. On lab-diffusion this pair was chosen after a look at all seven,
          on lab-sink-token and lab-shifted before it.
Found     docs/caches.md
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _settings import Arguments, made_by, run_script

import sinkscope
from sinkscope.evaluation.cache_comparison import compare_caches, comparison_table, points, read_arms
from sinkscope.evaluation.paired_tests import holm, paired_difference

BLOCKS = {"length": 32, "steps": 32, "block": 16}
WHOLE = {"length": 32, "steps": 32, "block": 32}
DREAM = {"length": 32, "steps": 32, "algorithm": "entropy"}
SAVING = (
    "fast-dllm-dual,fast-dllm-prefix,dkv-decode,sparse-dllm,block:every=4,block:fresh=changed,"
    "none@threshold=0.9,fast-dllm-dual@threshold=0.9,fast-dllm-prefix@threshold=0.9"
)
KEEPS = ("oracle", "attended", "sinks", "top", "no-sinks", "norm", "random", "first", "window")


NEWER = (
    "block,block:fresh=sinks,block:trigger=sink,block:trigger=drift,block:trigger=confidence,block:trigger=entropy,"
    "block:fresh=changed,recent=4,trigger=entropy,d2cache,dllm-cache"
)
REFRESHING = "block:every=2,block:every=4,block:every=8,block:every=16,block"


def keeping(options: str = "", window: int = 8) -> str:
    """Return the policies that read a budget of keys, with the one that reads all; ``window`` is that of ``sinks``."""
    more = f",{options}" if options else ""
    chosen = [f"block:keep={keep}{more}{f',window={window}' if keep == 'sinks' else ''}" for keep in KEEPS]
    return ",".join([f"block:{options}".rstrip(":"), *chosen])


PLANS: dict[str, dict[str, Any]] = {
    "lab-diffusion": {
        "model": "lab-diffusion",
        "task": "lab-arith",
        "limit": 512,
        "settings": BLOCKS,
        "policies": SAVING,
    },
    "lab-diffusion-more": {
        "model": "lab-diffusion",
        "task": "lab-arith",
        "limit": 1024,
        "settings": BLOCKS,
        "policies": "fast-dllm-dual,fast-dllm-prefix",
    },
    "lab-diffusion-newer": {
        "model": "lab-diffusion",
        "task": "lab-arith",
        "limit": 256,
        "settings": BLOCKS,
        "policies": NEWER,
    },
    "lab-diffusion-keys": {
        "model": "lab-diffusion",
        "task": "lab-arith",
        "limit": 256,
        "settings": BLOCKS,
        "policies": keeping(),
        "budgets": [16, 64],
    },
    "lab-diffusion-sums": {
        "model": "lab-diffusion",
        "task": "lab-sums",
        "settings": BLOCKS,
        "policies": keeping(window=2),
        "budgets": [4, 8],
    },
    "lab-sink-token": {
        "model": "lab-sink-token",
        "task": "lab-sums",
        "settings": BLOCKS,
        "policies": keeping(window=2),
        "budgets": [4, 8],
    },
    "lab-shifted": {
        "model": "lab-shifted",
        "task": "lab-sums",
        "limit": 272,
        "settings": DREAM,
        "policies": keeping("every=16", window=2),
        "budgets": [4, 8],
    },
    "lab-diffusion-refresh": {
        "model": "lab-diffusion",
        "task": "lab-sums",
        "limit": 96,
        "settings": WHOLE,
        "policies": REFRESHING,
    },
    "lab-sink-token-refresh": {
        "model": "lab-sink-token",
        "task": "lab-sums",
        "limit": 96,
        "settings": WHOLE,
        "policies": REFRESHING,
    },
}
"""Budgets are a quarter and less of the keys outside of a block: about 290 of them with five shots, 40 without, 24 with
lab-shifted."""


SAME_AS_BLOCK = ("none", "block", "block:trigger=confidence", "block:trigger=entropy")
"""Arms of lab-diffusion-newer that say nothing beside the other table: these triggers hardly ever fire."""


def savings_table(document: dict[str, Any], without: tuple[str, ...] = ()) -> list[str]:
    """Return the lines of the table of policies that read all keys: multiply-adds and speed as plain sampling's over
    theirs.

    The speed is left out where plain sampling was timed in another run.
    """
    timed = document["command"] is None or "newer" not in document["command"]
    lines = [
        "| policy | accuracy | minus plain, points | same answers | fewer multiply-adds |"
        + (" faster |" if timed else "")
    ]
    lines.append("|---" * (6 if timed else 5) + "|")
    for row in document["rows"]:
        if row["budget"] is None and row["policy"] not in without:
            name = "plain sampling" if row["policy"] == "none" else f"`{row['policy']}`"
            change = "–" if row["difference"] is None else points(row["difference"])
            line = (
                f"| {name} | {row['accuracy']:.3f} | {change} | {row['same_answers']:.3f} | {row['work_ratio']:.1f} |"
            )
            lines.append(line + (f" {row['speed_ratio']:.1f} |" if timed else ""))
    return lines


def keys_table(documents: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the table of accuracies under each way to choose keys, for each model and budget."""
    cells = {}
    for name, document in documents.items():
        for row in document["rows"]:
            if row["budget"] is not None:
                model, keep = name.removesuffix("-keys"), row["policy"].partition("keep=")[2].partition(",")[0]
                cells[model, row["budget"], keep] = f"{row['accuracy']:.3f}"
    columns = list(dict.fromkeys((model, budget) for model, budget, _ in cells))
    lines = [
        "| keys read | " + " | ".join(f"{model}, {budget}" for model, budget in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    return lines + [
        f"| `{keep}` | " + " | ".join(cells.get((*column, keep), "–") for column in columns) + " |" for keep in KEEPS
    ]


def pairs(document: dict[str, Any], one: str) -> list[str]:
    """Return a line for each budget and other way to choose keys: the accuracy of ``one`` minus its, in points, Holm
    over all of them.
    """
    chosen = {
        (row["budget"], row["policy"].partition("keep=")[2].partition(",")[0]): row
        for row in document["rows"]
        if row["budget"]
    }
    found = {}
    for (budget, keep), row in chosen.items():
        if keep != one:
            found[budget, keep] = paired_difference(
                *([int(each) for each in it["outcomes"]] for it in (chosen[budget, one], row))
            )
    adjusted = holm([change.p_value for change in found.values()])
    return [
        f"{one} − {keep}, budget {budget}: {points(asdict(change))}, p {p:.2g}"
        for ((budget, keep), change), p in zip(found.items(), adjusted, strict=True)
    ]


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=None, help="fewer problems than the plan has")
    given = parser.parse_args()
    torch.set_num_threads(1)
    head, plan = made_by(), PLANS[given.plan]
    model = sinkscope.load(plan["model"], dtype=torch.bfloat16)
    document = head | compare_caches(
        model,
        tasks=[plan["task"]],
        arms=read_arms(plan["policies"], plan.get("budgets", ())),
        out=given.work,
        limit=given.problems or plan.get("limit"),
        settings=plan["settings"],
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(comparison_table(document))
    print("\n".join(keys_table({given.plan: document}) if "budgets" in plan else savings_table(document)))
    for one in ("oracle", "sinks") if "budgets" in plan else ():
        print("\n".join(pairs(document, one)))


if __name__ == "__main__":
    run_script(main)
