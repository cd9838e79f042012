"""Does the order in which tokens are committed protect a diffusion model from losing its sinks?

Claim     Hiding a sink makes the tokens that relied on it less sure, so that they are committed later, when the sink has moved: that is why
          diffusion models are robust (arXiv 2510.15731, §5.2).
Command   python experiments/commit_order.py --work DIR --out results/hiding/commit_order.json [--problems 48] [--shots 0]
          The same command goes on where it stopped; more problems extend it.
Cost      three seconds of one core a problem without shots.

Fixed before the first run:
  1  On the unhidden run's canvases, with the top key hidden: Spearman's ρ, within a step, of a position's own attention to the hidden keys
     with the change of its confidence and with how many places later it comes; mean over problems. The explanation wants the first below 0
     and the second above 0, each with a 95 % interval (over problems) off 0.
  2  Accuracy with the top key hidden, minus accuracy with nothing hidden, in four orders: the model's own, one token a step; random; the
     unhidden run's own order, forced; and 2, 4 and 8 tokens a step. The explanation wants the loss to be larger in a random and in the
     forced order than in the model's own (difference of differences, interval off 0), and to grow with tokens a step.
  A verdict needs both; anything else is "not shown". One random key is hidden in the same way as a control, with three
  seeds (one until 22 November 2026).
Found     docs/hiding.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from _canvases import Diary
from _commit_order import reliance, write_in_order
from _made_by import made_by
from scipy.stats import bootstrap

import sinkscope
from sinkscope.attention import subscribed
from sinkscope.evaluation.tasks import score_number
from sinkscope.lab.prompts import few_shot_prompt, held_out

RULES = ("none", "top:1", *(f"random:1@seed={seed}" for seed in range(3)))
LENGTH, BLOCK, BATCH = 32, 16, 8
ARMS: dict[str, dict[str, Any]] = {
    "own order": {"steps": 32},
    "2 tokens a step": {"steps": 16},
    "4 tokens a step": {"steps": 8},
    "8 tokens a step": {"steps": 4},
    "random order": {"steps": 32, "remasking": "random"},
    "forced order": {},
}


def work_on(model: Any, shots: int, first: int, number: int) -> list[dict[str, Any]]:
    """Everything about some problems, one record each."""
    problems = [held_out("lab-arith")[index] for index in range(first, first + number)]
    prompts = [few_shot_prompt(problem, index, shots) for index, problem in enumerate(problems, first)]
    records: list[dict[str, Any]] = [{"correct": {}} for _ in prompts]
    orders: list[list[list[int]]] = []
    for arm, settings in ARMS.items():
        for rule in RULES:
            diary = Diary() if (arm, rule) == ("own order", "none") else None
            with sinkscope.parse_rule(rule)(model):
                if arm == "forced order":
                    answers = [write_in_order(model, prompt, order) for prompt, order in zip(prompts, orders, strict=True)]
                elif diary is None:
                    answers = sinkscope.generate(model, prompts, length=LENGTH, block=BLOCK, seed=first, **settings)
                else:
                    with subscribed(model.network, diary):
                        answers = sinkscope.generate(model, prompts, length=LENGTH, block=BLOCK, seed=first, **settings)
            for record, problem, answer in zip(records, problems, answers, strict=True):
                record["correct"][f"{arm}, {rule}"] = int(score_number(problem, answer.text).correct)
            if diary is not None:
                for row, record in enumerate(records):
                    start = diary.steps[0][0].shape[1] - diary.lengths[row]
                    own = [(before[row, start:].numpy(), written[row, start:].numpy()) for before, written in diary.steps]
                    orders.append([np.flatnonzero(written >= 0).tolist() for _, written in own])
                    record["reliance"] = relied(model, own, diary.lengths[row] - LENGTH)
    return records


def relied(model: Any, own: list[tuple[np.ndarray, np.ndarray]], prompt: int) -> dict[str, float]:
    canvases = np.stack([before for before, _ in own])
    masked = canvases == model.card.mask_id
    place, stops = np.arange(canvases.shape[1]), np.repeat(np.arange(BLOCK, LENGTH + 1, BLOCK), BLOCK)
    candidates = masked & (place[None] < prompt + stops[: len(own), None])
    return reliance(model, canvases, sinkscope.HideTopSinks(1), candidates).correlations()


def interval(values: np.ndarray) -> list[float]:
    if not len(values) or np.ptp(values) == 0:
        return [float(values[0])] * 2 if len(values) else [float("nan")] * 2
    found = bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(found.low), float(found.high)]


def told(values: np.ndarray) -> dict[str, Any]:
    return {"mean": float(values.mean()), "interval": interval(values), "n": len(values)}


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    correct = {key: np.array([one["correct"][key] for one in records], dtype=float) for key in records[0]["correct"]}
    loss = {
        arm: {rule: correct[f"{arm}, {rule}"] - correct[f"{arm}, none"] for rule in RULES[1:]} for arm in ARMS
    }  # a forced order without hiding writes what the free one did
    found: dict[str, Any] = {"accuracy": {key: told(values) for key, values in correct.items()}}
    found["loss"] = {arm: {rule: told(values) for rule, values in one.items()} for arm, one in loss.items()}
    found["loss_beyond_own_order"] = {
        arm: told(one["top:1"] - loss["own order"]["top:1"]) for arm, one in loss.items() if arm != "own order"
    }
    rho = {name: np.array([one["reliance"][name] for one in records]) for name in ("confidence", "order")}
    found["reliance"] = {name: told(values[~np.isnan(values)]) for name, values in rho.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--shots", type=int, default=0)
    arguments = parser.parse_args()
    model, records = sinkscope.load("lab-diffusion"), []
    for first in range(0, arguments.problems, BATCH):
        kept = arguments.work / f"{model.card.weight_hash[:12]}-{arguments.shots}-{first:04d}.json"
        if not kept.exists():
            found = work_on(model, arguments.shots, first, BATCH)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.with_suffix(".writing").write_text(json.dumps(found))
            kept.with_suffix(".writing").rename(kept)
        records += json.loads(kept.read_text())
        document = {"experiment": "commit_order", **made_by(), "model": model.card.as_dict(), "shots": arguments.shots}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(document | {"problems": len(records)} | summary(records), indent=1) + "\n")
        print(len(records), {key: round(one["mean"], 2) for key, one in summary(records)["accuracy"].items()}, flush=True)


if __name__ == "__main__":
    main()
