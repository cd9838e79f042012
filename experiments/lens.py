"""What do sinks store? The lens of a model's answers to GSM8K questions, and of the network with redrawn weights.

    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --every 16 --out results/lens
    python experiments/lens.py smollm2-diffusion --prompts prompts.jsonl --steps 3 --redrawn --out results/lens

Traces are kept, so that a killed run goes on. Redrawn: see `_lab_runs.load`; heads have sinks by chance.
"""

import argparse
import json
from pathlib import Path

from _lab_runs import WORK, load

import sinkscope


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("model")
    flags.add_argument("--prompts", type=Path, required=True)
    flags.add_argument("--count", type=int, default=12)
    flags.add_argument("--every", type=int, default=1)
    flags.add_argument("--steps", type=int)
    flags.add_argument("--redrawn", action="store_true")
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
    found = sinkscope.lens(model, folders, every=asked.every)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"{name}.json").write_text(json.dumps(rounded(found.as_dict()), ensure_ascii=False) + "\n")
    print(found.headline())


if __name__ == "__main__":
    main()
