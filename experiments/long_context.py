"""Can the oldest part of a prompt be dropped, and do the sinks in the future make up for it?

Claim     A diffusion model could drop past context, its first token included, as long as its sinks in the future stay,
          where an autoregressive model loses the sink on its first token (arXiv 2510.15731, §5.3, an open question
          there).
Command   python experiments/long_context.py --work DIR --out results/hiding/long_context.json [--problems 48] [--model
          lab-diffusion] The same command goes on where it stopped; more problems extend it.
Cost      six seconds of one core a problem (diffusion), one (autoregressive, in batches). Only whole answers are
          scored: all is bfloat16, as the checkpoints are stored and as in table_one.py.

Fixed before the first run: the first half of each prompt (5 shots, so about two and a half of them) is hidden from
everybody, from the first step on. Dropping shots may cost something of itself, so every arm is held against dropping
alone:
  diffusion       the top sink among the masks hidden too, or one random mask instead. "Future sinks carry it" when the
                  first costs more than the second, 95 % interval of the paired difference off 0 and the exact test
                  below .05.
  autoregressive  the first token kept, or the first four (StreamingLLM). "The first token carries it" when keeping it
                  gains, by the same rule.
The exact test was added after the runs: the interval alone, a bootstrap then, left out 0 at four problems of 96.
The random mask had one seed, and there were 96 problems, until 22 November 2026.
Found     docs/findings.md
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import SETTINGS, Arguments, made_by, run_script

import sinkscope
from sinkscope.evaluation.paired_tests import against_controls, wilson_interval
from sinkscope.evaluation.tasks import score_number
from sinkscope.interventions import HidePositions, Intervention, RandomKeys, RuleContext, compose
from sinkscope.lab.prompts import few_shot_prompt, held_out

SHOTS = 5
BATCH = {"lab-diffusion": 1, "lab-autoregressive": 32}  # a diffusion model's whole canvases gain nothing side by side


@dataclass(frozen=True)
class DropOldest(Intervention):
    """The oldest tokens dropped, for prompts side by side: of each its own number of oldest tokens, but for the first
    ``keep``.
    """

    observing = False

    counts: tuple[int, ...]
    keep: int = 0

    def choose(self, context: RuleContext) -> torch.Tensor:
        position = context.real.long().cumsum(-1) - 1
        return (context.real & (position >= self.keep) & (position < position.new_tensor(self.counts)[:, None]))[
            :, None
        ]


def arms(causal: bool, half: tuple[int, ...]) -> dict[str, Any]:
    """Return the rules by name; of each prompt ``half`` tokens are dropped."""
    found: dict[str, Any] = {"nothing": compose(), "half dropped": DropOldest(half)}
    if causal:
        first = {f"half dropped but the first {keep}": DropOldest(half, keep) for keep in (1, 4)}
        return (
            found | first | {"first token dropped": HidePositions((0,)), "first four dropped": HidePositions(range(4))}
        )
    masks = {f"a random mask hidden, seed {seed}": RandomKeys(1, seed=seed, keys="masked") for seed in range(3)}
    return found | {
        "half dropped, top future sink hidden": compose(DropOldest(half), sinkscope.HideTopSinks(1, keys="masked")),
        **{f"half dropped, {name}": compose(DropOldest(half), rule) for name, rule in masks.items()},
        "half dropped but the first": DropOldest(half, 1),
        "top future sink hidden": sinkscope.HideTopSinks(1, keys="masked"),
        **masks,
    }


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--model", action="append", choices=list(SETTINGS), default=None)
    arguments = parser.parse_args()
    for name in arguments.model or list(SETTINGS):
        model, records = sinkscope.load(name, dtype=torch.bfloat16), []
        size = BATCH[name]
        for first in range(0, arguments.problems, size):
            kept = arguments.work / f"{name}-{model.card.weight_hash[:12]}-bf16-{first:04d}.json"
            if not kept.exists():
                found = work_on(model, first, size)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.with_suffix(".writing").write_text(json.dumps(found))
                kept.with_suffix(".writing").rename(kept)
            records += json.loads(kept.read_text())
            if len(records) % 8 == 0 or len(records) >= arguments.problems:
                write(arguments.out, model, records)


def work_on(model: Any, first: int, size: int) -> list[dict[str, Any]]:
    """Write some problems under every rule; return one record each."""
    numbers = range(first, first + size)
    problems = [held_out("lab-arith")[number] for number in numbers]
    prompts = [
        model.encode(few_shot_prompt(problem, number, SHOTS)) for problem, number in zip(problems, numbers, strict=True)
    ]
    found: list[dict[str, Any]] = [{} for _ in problems]
    for arm, rule in arms(model.family.causal, tuple(len(prompt) // 2 for prompt in prompts)).items():
        with rule(model) as hiding:
            answers = sinkscope.generate(model, prompts, **SETTINGS[model.card.name])
        for row, (problem, answer) in enumerate(zip(problems, answers, strict=True)):
            share = 0.0 if rule.idle else hiding.effect.of(row).removed_share
            found[row][arm] = {"correct": int(score_number(problem, answer.text).correct), "removed_share": share}
    return found


def write(out: Path, model: Any, records: list[dict[str, Any]]) -> None:
    document = (
        json.loads(out.read_text()) if out.exists() else {"experiment": "long_context", "shots": SHOTS, "models": {}}
    )
    outcomes = {arm: [one[arm]["correct"] for one in records] for arm in records[0]}
    removed = {arm: float(np.mean([one[arm]["removed_share"] for one in records])) for arm in records[0]}
    against = {"half dropped": "nothing", "first token dropped": "nothing", "first four dropped": "nothing"}
    against |= {"top future sink hidden": "a random mask hidden"} | {
        arm: "nothing" for arm in outcomes if arm.startswith("a random mask")
    }
    against |= {"half dropped, top future sink hidden": "half dropped, a random mask hidden"}
    document["models"][model.card.name] = {
        **made_by(),
        "weight_hash": model.card.weight_hash,
        "dtype": "bfloat16",
        "settings": SETTINGS[model.card.name],
        "problems": len(records),
        "arms": {
            arm: {
                "accuracy": float(np.mean(found)),
                "interval": wilson_interval(sum(found), len(found)),
                "removed_share": removed[arm],
            }
            | (
                {}
                if arm == "nothing"
                else {"against": against.get(arm, "half dropped")}
                | told(found, outcomes, against.get(arm, "half dropped"))
            )
            for arm, found in outcomes.items()
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(
        model.card.name,
        len(records),
        {arm: round(float(np.mean(found)), 2) for arm, found in outcomes.items()},
        flush=True,
    )


def told(one: list[int], outcomes: dict[str, list[int]], against: str) -> dict[str, float]:
    """Return the difference from another arm, or from all seeds of one."""
    found = against_controls(
        one, [other for arm, other in outcomes.items() if arm == against or arm.startswith(f"{against}, seed ")]
    )
    return {key: getattr(found, key) for key in ("mean", "low", "high", "p_value")}


if __name__ == "__main__":
    run_script(main)
