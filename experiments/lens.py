"""What do sinks store? The lens of a model's answers to GSM8K questions, and of the network with redrawn weights.

    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --every 16 --out results/lens
    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --every 16 --without-runs --out results/lens
    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --every 16 --tuned LENS --out results/lens
    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --steps 3 --redrawn --out results/lens

LENS: a folder of `sinkscope lens --fit`. Without runs: tokens that equal the one in front of or behind them are not
scored, as they are easy to predict. Traces are kept, so that a killed run goes on. Redrawn: see `_lab_runs.load`; heads
have sinks by chance.
"""

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np
from _lab_runs import WORK, load
from transplant import rounded

import sinkscope
from sinkscope.lenses import open_lens
from sinkscope.lenses.pairs import Pairs

SCORED = Pairs.tokens


def tokens_without_runs(pairs, canvas, masked):
    same = canvas[1:] == canvas[:-1]
    runs = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    at = (pairs.rows[:, None] + np.array([-1, 0, 1])).clip(0, len(canvas) - 1)
    return np.where(runs[at], -1, SCORED(pairs, canvas, masked))


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("model")
    flags.add_argument("--prompts", type=Path, required=True)
    flags.add_argument("--count", type=int, default=12)
    flags.add_argument("--every", type=int, default=1)
    flags.add_argument("--steps", type=int)
    flags.add_argument("--redrawn", action="store_true")
    flags.add_argument("--without-runs", action="store_true")
    flags.add_argument("--tuned", type=Path)
    flags.add_argument("--out", type=Path, required=True)
    asked = flags.parse_args()
    model = load(asked.model, asked.redrawn)
    name = asked.model + "-redrawn" * asked.redrawn
    settings = {"length": 64, **({} if asked.steps is None else {"steps": asked.steps})}
    prompts = [json.loads(line)["prompt"] for line in asked.prompts.read_text().splitlines()][: asked.count]
    folders = [WORK / "lens" / name / f"{number:06d}" for number in range(len(prompts))]
    for prompt, folder in zip(prompts, folders, strict=True):
        if not (folder / "manifest.json").exists() or not sinkscope.open_trace(folder).complete:
            with sinkscope.recording(model, out=folder, overwrite=True):
                sinkscope.generate(model, prompt, **settings)
    with mock.patch.object(Pairs, "tokens", tokens_without_runs if asked.without_runs else SCORED):
        tuned = None if asked.tuned is None else open_lens(asked.tuned, model)
        found = sinkscope.lens(model, folders, every=asked.every, tuned=tuned)
    asked.out.mkdir(parents=True, exist_ok=True)
    name += "-without-runs" * asked.without_runs + "-tuned" * (tuned is not None)
    (asked.out / f"{name}.json").write_text(
        json.dumps(rounded(found.as_dict() | {"model": name}), ensure_ascii=False) + "\n"
    )
    print(found.headline())


if __name__ == "__main__":
    main()
