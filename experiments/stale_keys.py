"""Does a sink token let keys and values be refreshed less often?

Claim     A sink token attends to itself alone, so its key is never stale; a model whose attention rests on it should mind stale keys less.
Command   python experiments/stale_keys.py --models lab-sink-token lab-diffusion --out results/caches/stale-keys.json
          The fair pair is lab-sink-token and lab-sink-none of one seed (`sinkscope train lab-sink-none`); folders are models too.
Cost      two minutes of one core a model.
Rule      Written down before the run. Plain sampling writes an answer of one block, a token a step. Its canvases are read again with a
          cache that refreshes in every R-th step (`block:every=R`) and computes the block in between. Measured is the Kullback-Leibler
          divergence, in nats, from the predictions without a cache to those with it, mean over the masks of a step and over the steps of
          an answer; 95 % intervals by bootstrap over answers. The claim holds at an R where the whole interval of the model with the token
          lies below that of the model without, and is refuted where it lies above; between models that differ in more than the
          token it tells nothing about the token.
Found     docs/caches.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import made_by

import sinkscope
from sinkscope.decoding import find_sampler, make_batch, resolve_settings
from sinkscope.decoding.caches.reader import reading
from sinkscope.decoding.canvas import masked_canvas
from sinkscope.decoding.projection import project
from sinkscope.decoding.work import WorkMeter
from sinkscope.evaluation.tasks import find_task

INTERVALS = (2, 4, 8, 16, 32)
LENGTH, BATCH = 32, 16
RESAMPLES = 10_000


@torch.no_grad()
def divergences(model: Any, prompts: list[list[int]]) -> dict[int, list[float]]:
    """Return the mean divergence of each answer, by how often everything is refreshed."""
    settings = resolve_settings(model.family, length=LENGTH, steps=LENGTH, block=LENGTH)
    batch = make_batch(model, prompts, [None] * len(prompts), LENGTH)
    steps = list(find_sampler(model.family.sampler)(model, batch, settings))
    first, layout = masked_canvas(batch, LENGTH, model.card.mask_id)
    canvases = [first, *(step.tokens for step in steps[:-1])]
    plain = _predictions(model, batch, layout, settings, canvases, steps)
    found = {}
    for every in INTERVALS:
        cached = resolve_settings(model.family, length=LENGTH, steps=LENGTH, block=LENGTH, cache=f"block:every={every}")
        other = _predictions(model, batch, layout, cached, canvases, steps)
        sums = torch.zeros(len(prompts), dtype=torch.float64)
        for canvas, one, two in zip(canvases, plain, other, strict=True):
            masked = canvas == model.card.mask_id
            apart = (one.exp() * (one - two)).sum(-1)
            sums += torch.zeros(masked.shape, dtype=torch.float64).masked_scatter_(masked, apart).sum(-1) / masked.sum(-1)
        found[every] = (sums / len(steps)).tolist()
    return found


def _predictions(model: Any, batch: Any, layout: Any, settings: Any, canvases: list[Any], steps: list[Any]) -> list[Any]:
    """Return the log-probabilities at the masks of each canvas, float64 [mask, vocabulary], as a reader of these settings computes them."""
    found = []
    with reading(model, batch, layout, WorkMeter(model.network, len(canvases[0])), settings) as reader:
        reader.begin_block(canvases[0].shape[1] - LENGTH, canvases[0].shape[1])
        for canvas, step in zip(canvases, steps, strict=True):
            masked = canvas == model.card.mask_id
            reader.open_places(canvas, masked)
            found.append(project(model, reader.read(canvas), masked, layout).double().log_softmax(-1))
            reader.committed(step.written, step.confidence)
    return found


def interval(values: list[float]) -> list[float]:
    """Return the 95 % interval of a mean, by bootstrap over answers."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values))).mean(1)
    return np.quantile(drawn, [0.025, 0.975]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["lab-sink-token", "lab-diffusion"])
    parser.add_argument("--problems", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {**made_by(), "task": "lab-sums", "length": LENGTH, "models": {}}
    for name in given.models:
        model = sinkscope.load(name, dtype=torch.float32)
        task = find_task("lab-sums", {})
        prompts = [model.encode(task.prompt(problem, index, 0)) for index, problem in enumerate(task.problems()[: given.problems])]
        found: dict[int, list[float]] = {every: [] for every in INTERVALS}
        for start in range(0, len(prompts), BATCH):
            for every, values in divergences(model, prompts[start : start + BATCH]).items():
                found[every] += values
        rows = [{"every": every, "mean": float(np.mean(one)), "interval": interval(one), "answers": one} for every, one in found.items()]
        document["models"][model.card.name] = {"weight_hash": model.card.weight_hash, "rows": rows}
        for row in rows:
            low, high = row["interval"]
            print(
                f"{model.card.name}, every {row['every']}: {row['mean']:.2e} ({low:.2e} … {high:.2e}) nats, {len(prompts)} answers",
                flush=True,
            )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
