"""Does a sink token let keys and values be refreshed less often?

Claim     A sink token attends to itself alone, so its key is never stale; a model whose attention rests on it should
          mind stale keys less.
Command   python experiments/stale_keys.py --models lab-sink-token lab-diffusion --out results/caches/stale-keys.json
          python experiments/stale_keys.py --arms FOLDER --data CORPUS --out results/caches/stale-keys-arms.json
          FOLDER is what experiments/text_knobs.py trains: models of text that differ in the sink token alone, by seed.
Cost      two minutes of one core a model.
Rule      Written down before the run. Plain sampling writes an answer of one block, a token a step. Its canvases are
          read again with a cache that refreshes in every R-th step (`block:every=R`) and computes the block in between.
          Measured is the Kullback-Leibler divergence, in nats, from the predictions without a cache to those with it,
          mean over the masks of a step and over the steps of an answer; 95 % intervals by bootstrap over answers. The
          claim holds at an R where the whole interval of the model with the token lies below that of the model without,
          and is refuted where it lies above; between models that differ in more than the token it tells nothing about
          the token. Arms write 32 tokens behind 128 of each of 16 held-out windows. Of each seed and R, the mean
          divergence of the arm with the token is divided by that of the arm without, with a 95 % interval by bootstrap
          over windows. The seeds decide: the geometric mean of their ratios with its 95 % interval by Student's t. The
          claim holds at an R where this interval lies below 1, is refuted where it lies above, and is undecided
          elsewhere. With three seeds only a large and regular difference can be told. (48 windows and five intervals
          became 16 and three to save time, when nothing of the arms with a token had been seen.)
Found     docs/caches.md
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, made_by, run_script
from scipy import stats

import sinkscope
from sinkscope.decoding import find_sampler, make_batch, resolve_settings
from sinkscope.decoding.caches.reader import reading
from sinkscope.decoding.canvas import WorkMeter, masked_canvas
from sinkscope.decoding.projection import project
from sinkscope.evaluation.tasks import find_task
from sinkscope.lab.run_folder import held_out_rows, network_at, open_run
from sinkscope.lab.starting_network import choose_tokenizer
from sinkscope.lab.texts import open_corpus
from sinkscope.models.loading import model_of

INTERVALS = (2, 4, 8, 16, 32)
OF_ARMS = (4, 16, 32)
LENGTH, BATCH = 32, 16
RESAMPLES = 10_000
WITHOUT, WITH = "diffusion-base", ("diffusion-sink-token", "diffusion-sink-zero")
WINDOWS, PROMPT = 16, 128


@torch.no_grad()
def divergences(model: Any, prompts: list[list[int]], intervals: Sequence[int] = INTERVALS) -> dict[int, list[float]]:
    """Return the mean divergence of each answer, by how often everything is refreshed."""
    settings = resolve_settings(model.family, length=LENGTH, steps=LENGTH, block=LENGTH)
    batch = make_batch(model, prompts, [None] * len(prompts), LENGTH)
    steps = list(find_sampler(model.family.sampler)(model, batch, settings))
    first, layout = masked_canvas(batch, LENGTH, model.card.mask_id)
    canvases = [first, *(step.tokens for step in steps[:-1])]
    plain = _predictions(model, batch, layout, settings, canvases, steps)
    found = {}
    for every in intervals:
        cached = resolve_settings(model.family, length=LENGTH, steps=LENGTH, block=LENGTH, cache=f"block:every={every}")
        other = _predictions(model, batch, layout, cached, canvases, steps)
        sums = torch.zeros(len(prompts), dtype=torch.float64)
        for canvas, one, two in zip(canvases, plain, other, strict=True):
            masked = canvas == model.card.mask_id
            apart = (one.exp() * (one - two)).sum(-1)
            sums += torch.zeros(masked.shape, dtype=torch.float64).masked_scatter_(masked, apart).sum(-1) / masked.sum(
                -1
            )
        found[every] = (sums / len(steps)).tolist()
    return found


def _predictions(
    model: Any, batch: Any, layout: Any, settings: Any, canvases: list[Any], steps: list[Any]
) -> list[Any]:
    """Return the log-probabilities at the masks of each canvas, float64 [mask, vocabulary], as a reader of these
    settings computes them.
    """
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


def divergences_of(
    model: Any, prompts: list[list[int]], intervals: Sequence[int] = INTERVALS
) -> dict[int, list[float]]:
    """Return the mean divergence of each answer, by how often everything is refreshed, in batches."""
    found: dict[int, list[float]] = {every: [] for every in intervals}
    for start in range(0, len(prompts), BATCH):
        for every, values in divergences(model, prompts[start : start + BATCH], intervals).items():
            found[every] += values
    return found


def bundled(names: list[str], problems: int) -> dict[str, Any]:
    """Return what comes of models on the lab's sums, by their names."""
    found = {}
    for name in names:
        model = sinkscope.load(name, dtype=torch.float32)
        task = find_task("lab-sums", {})
        prompts = [
            model.encode(task.prompt(problem, index, 0)) for index, problem in enumerate(task.problems()[:problems])
        ]
        of_model = divergences_of(model, prompts)
        rows = [
            {"every": every, "mean": float(np.mean(one)), "interval": interval(one), "answers": one}
            for every, one in of_model.items()
        ]
        found[model.card.name] = {"weight_hash": model.card.weight_hash, "rows": rows}
        for row in rows:
            low, high = row["interval"]
            print(
                f"{name}, every {row['every']}: {row['mean']:.2e} ({low:.2e} … {high:.2e}) nats, {len(prompts)} answers",
                flush=True,
            )
    return found


def trained(folder: Path, data: Path) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Return the divergences of each answer of the arms in a folder, by arm, seed and interval."""
    corpus = open_corpus(data)
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for arm in (WITHOUT, *WITH):
        for path in sorted(folder.glob(f"{arm}-[0-9]*")):
            run = open_run(path)
            tokenizer = choose_tokenizer(run.recipe, corpus)
            model = model_of(network_at(run, run.recipe.updates, tokenizer), tokenizer, name=path.name)
            windows, _ = held_out_rows(run.recipe, tokenizer, corpus, WINDOWS)
            of_model = divergences_of(model, [row[:PROMPT].tolist() for row in windows], OF_ARMS)
            found.setdefault(arm, {})[path.name.rpartition("-")[2]] = of_model
            print(path.name, {every: f"{np.mean(one):.2e}" for every, one in of_model.items()}, flush=True)
    return found


def ratios(found: dict[str, dict[str, dict[int, list[float]]]]) -> list[dict[str, Any]]:
    """Return, for each arm with a token and each interval, its divergence over that of the arm without: by seed, and
    over the seeds.
    """
    rows = []
    for arm in [one for one in WITH if one in found]:
        for every in OF_ARMS:
            seeds = {}
            for seed, values in found[arm].items():
                pair = np.asarray([values[every], found[WITHOUT][seed][every]])
                drawn = np.random.default_rng(0).integers(0, pair.shape[1], (RESAMPLES, pair.shape[1]))
                over, under = pair[:, drawn].mean(-1)
                low, high = np.quantile(over / under, [0.025, 0.975]).tolist()
                seeds[seed] = {"ratio": float(pair[0].mean() / pair[1].mean()), "interval": [low, high]}
            rows.append(
                {"arm": arm, "every": every, "seeds": seeds, **over_seeds([one["ratio"] for one in seeds.values()])}
            )
    return rows


def over_seeds(found: list[float]) -> dict[str, Any]:
    """Return the geometric mean of the seeds' ratios, its 95 % interval by Student's t, and the verdict on the
    claim.
    """
    logs = np.log(found)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, high = np.exp([logs.mean() - half, logs.mean() + half]).tolist()
    verdict = "holds" if high < 1 else "refuted" if low > 1 else "undecided"
    return {"ratio": float(np.exp(logs.mean())), "interval": [low, high], "verdict": verdict}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=["lab-sink-token", "lab-diffusion"])
    parser.add_argument("--problems", type=int, default=96)
    parser.add_argument("--arms", type=Path, default=None)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {**made_by(), "length": LENGTH}
    if given.arms is None:
        document |= {"task": "lab-sums", "models": bundled(given.models, given.problems)}
    else:
        answers = trained(given.arms, given.data)
        document |= {"windows": WINDOWS, "prompt": PROMPT, "rows": ratios(answers), "answers": answers}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
