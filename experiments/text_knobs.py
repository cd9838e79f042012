"""What each setting of the recipes on text does to the sinks: short trainings that differ in one setting, and one of
plain transformers.

Command   python experiments/text_knobs.py --data CORPUS --work FOLDER [--arms NAME…] [--seeds 0 1 2] --out
          results/emergence/knobs.json CORPUS is what experiments/books_corpus.py writes. A run that was killed goes on;
          a finished one is only measured.
Cost      about 10 minutes on a core for each arm, half a minute to measure it.
Rules     Every arm is one of the two recipes, its schedule included, cut off after 2,500 updates of 2,048 tokens, and
          measured on 24 held-out windows as `sinkscope watch-training` measures them. Arms of one seed draw the same
          windows in the same order, where the setting allows it. The top key of a head is the key with the largest
          column of the queries that are judged.
          Other settings: ``rate`` 6e-3 (3e-3), weight ``decay`` 0.5 (0.1), ``context`` 512 tokens (256), ``first`` text
              instead of BOS,
          or BOS instead of text, ``depth`` 3 layers (6), ``batch`` 1,024 tokens (2,048), and ``cosine``, whose rate
          falls to a tenth within these updates (20,000). ``sink-token`` and ``sink-zero`` have a sink token (paper 2),
          the latter with a value of zero. ``plain`` is ``cosine`` in the hands of transformers' Trainer: its loss,
          optimiser, schedule.
Roles     What the sinks of a whole training do along it, and how they move while a text is written; 2 to 4 minutes for
          each update: python experiments/text_knobs.py --roles-of RUN --at 3000 20000 --data CORPUS --out
              results/emergence/roles-autoregressive.json
          RUN is a folder of `sinkscope train lab-text-autoregressive` or `lab-text-diffusion`. The rules are those of
          `sinkscope roles`, on the same windows; even windows choose the heads, odd ones judge. Movement is that of
          main sinks while a diffusion model writes 64 tokens behind 128 of a held-out window, one a step, beside the
          same with the steps shuffled.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, made_by, run_script

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.emergence import HeldOut, hold_out
from sinkscope.emergence.moment import measure
from sinkscope.lab.recipes import RECIPES, Recipe
from sinkscope.lab.run_folder import TrainingRun, held_out_rows, network_at, open_run
from sinkscope.lab.starting_network import build_network, choose_tokenizer, source_of
from sinkscope.lab.texts import Corpus, open_corpus
from sinkscope.lab.training import train
from sinkscope.models.loading import model_of
from sinkscope.roles import ROLES, find_roles_on
from sinkscope.sinks import movement_test

TOLD = ("share", "norm_ratio", "kl.sink.zero", "kl.sink", "kl.rowmass", "kl.rowmass.zero")
UPDATES = 2500
WINDOWS = 24
GENERATIONS, PROMPT, WRITTEN = 8, 128, 64
AUTOREGRESSIVE, DIFFUSION = "lab-text-autoregressive", "lab-text-diffusion"
KNOBS: dict[str, dict[str, Any]] = {
    "base": {},
    "rate": {"learning_rate": 6e-3},
    "decay": {"weight_decay": 0.5},
    "context": {"lengths": (512,)},
    "first": {},
    "depth": {"layers": 3},
    "batch": {"tokens": 1024},
    "cosine": {"decay_updates": None},
}
SINKS = {"sink-token": "token", "sink-zero": "token-zero-value"}
ARMS = {
    **{f"autoregressive-{name}": (AUTOREGRESSIVE, changes) for name, changes in KNOBS.items()},
    "autoregressive-plain": (AUTOREGRESSIVE, KNOBS["cosine"]),
    **{f"diffusion-{name}": (DIFFUSION, changes) for name, changes in KNOBS.items()},
    **{f"diffusion-{name}": (DIFFUSION, {"sink_token": variant}) for name, variant in SINKS.items()},
}


def recipe_of(arm: str, seed: int, updates: int, compiled: bool) -> Recipe:
    """Return the recipe of an arm."""
    name, changes = ARMS[arm]
    recipe, changes = RECIPES[name], dict(changes)
    if arm.endswith("-first"):
        changes["first_token"] = "text" if recipe.first_token == "bos" else "bos"
    for inner in ("architecture", "canvases"):
        held = getattr(recipe, inner)
        own = {key: changes.pop(key) for key in list(changes) if hasattr(held, key)}
        changes[inner] = replace(held, **own)
    return replace(
        recipe,
        **changes,
        updates=updates,
        snapshots=(0, 400, 1000, updates),
        seed=seed,
        compile=compiled,
        validate_every=updates,
    )


def train_plain(recipe: Recipe, folder: Path, corpus: Corpus) -> None:
    """Train the recipe's network with transformers' Trainer, and write its weights as the snapshot of its last
    update.
    """
    from safetensors.torch import save_file
    from transformers import Trainer, TrainingArguments

    class Windows(torch.utils.data.Dataset):
        rows = recipe.canvases.tokens // recipe.canvases.lengths[0]

        def __len__(self) -> int:
            return recipe.updates * self.rows

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            window = draw(recipe.seed, number // self.rows).tokens[number % self.rows]
            return {"input_ids": window, "labels": window}

    draw = source_of(recipe, corpus.tokenizer(), corpus)
    network = build_network(recipe, corpus.tokenizer())
    settings = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=recipe.updates,
        per_device_train_batch_size=Windows.rows,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.betas[0],
        adam_beta2=recipe.betas[1],
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": recipe.final_share, "num_cycles": 0.5},
        warmup_steps=round(recipe.warmup_share * recipe.updates),
        bf16=recipe.autocast,
        use_cpu=True,
        seed=recipe.seed,
        data_seed=recipe.seed,
        save_strategy="no",
        logging_steps=100,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(network, settings, train_dataset=Windows())
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    trainer.train()
    weights = {name: value.detach().clone() for name, value in network.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "plain.safetensors")


def measured(arm: str, recipe: Recipe, folder: Path, corpus: Corpus) -> dict[str, Any]:
    """Return what an arm's network does on held-out windows: losses, and of each head the means over windows."""
    from safetensors.torch import load_file

    tokenizer = choose_tokenizer(recipe, corpus)
    if arm.endswith("-plain"):
        network = build_network(recipe, tokenizer)
        network.load_state_dict(load_file(folder / "plain.safetensors"), strict=False)
    else:
        run = open_run(folder)
        network = network_at(run, recipe.updates, tokenizer)
    mask_id = None if recipe.objective == "next_token" else tokenizer.mask_token_id
    rows, predictable = held_out_rows(recipe, tokenizer, corpus, WINDOWS)
    canvases = hold_out(rows, predictable, mask_id=mask_id)
    model = model_of(network.eval(), tokenizer, name=arm)
    found = summary(measure(model, canvases)) | {"attention_on_sink_token": sink_share(model, canvases)}
    return found | ({} if mask_id is None else movement(model, rows))


class OnSinkToken(Watcher):
    """The judged queries' attention on the network's own sink token, by layer."""

    groups = ("masked",)

    def __init__(self) -> None:
        self.shares: list[float] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        text = columns.sums[:, :, 0].sum(-1)
        own = torch.zeros_like(text) if columns.prefix is None else columns.prefix[:, :, 0].sum(-1)
        self.shares.append(float((own / (own + text)).mean()))


@torch.no_grad()
def sink_share(model: Any, canvases: Sequence[HeldOut]) -> float:
    """Return the share of the judged queries' attention on the network's own sink token, mean over layers, heads and
    windows.
    """
    if model.card.sink_token is None:
        return 0.0
    with subscribed(model.network, watcher := OnSinkToken()):
        for one in canvases:
            model.network(torch.from_numpy(one.probe.tokens.astype(np.int64))[None], use_cache=False)
    return float(np.mean(watcher.shares))


def movement(model: Any, rows: Sequence[np.ndarray]) -> dict[str, Any]:
    """Return how the main sinks of a diffusion model move while it writes 64 tokens behind 128 of a held-out window,
    one a step.
    """
    tests = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows[:GENERATIONS]):
            with sinkscope.recording(model, out=Path(folder) / str(number)):
                sinkscope.generate(model, row[:PROMPT].tolist(), length=WRITTEN, steps=WRITTEN, block=WRITTEN)
            tracks = sinkscope.track(sinkscope.find_sinks(Path(folder) / str(number)))
            tests.append(movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted))
    moved = [one for one in tests if one.heads]
    return {
        "heads_with_main_sink": float(np.mean([one.heads for one in tests])),
        "moves_per_head": float(np.mean([one.moves_per_head for one in moved])) if moved else None,
        "moves_shuffled": float(np.mean([one.null_moves[0] for one in moved])) if moved else None,
    }


def summary(moment: Any) -> dict[str, Any]:
    """Return the numbers of one network that the tables of docs/findings.md hold."""
    share, first, ratio = (getattr(moment, name).mean(0) for name in ("share", "first_share", "value_ratio"))
    strongest = np.unravel_index(share.argmax(), share.shape)
    return {
        "loss": float(moment.loss.mean()),
        "cost_of_top_keys": float((moment.loss_without_top - moment.loss).mean()),
        "cost_of_rowmass": float((moment.loss_without_rowmass - moment.loss).mean()),
        "heads": int(share.size),
        "heads_over_a_tenth": int((share >= 0.1).sum()),
        "largest_share": float(share.max()),
        "its_value_ratio": float(ratio[strongest]),
        "its_commonest_place": int(np.bincount(moment.place[:, *strongest]).argmax()),
        "largest_first_share": float(first.max()),
        "mean_first_share": float(first.mean()),
    }


def run_arm(arm: str, seed: int, arguments: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
    """Train an arm where that is not done, measure it, and keep what was measured in its folder."""
    recipe = recipe_of(arm, seed, arguments.updates, compiled=not arguments.eager and not arm.endswith("-plain"))
    folder = arguments.work / f"{arm}-{seed}"
    kept = folder / "measured.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if arm.endswith("-plain"):
            if not (folder / "plain.safetensors").exists():
                train_plain(recipe, folder, corpus)
        else:
            train(recipe, folder, texts=corpus)
        kept.write_text(json.dumps(measured(arm, recipe, folder, corpus)))
    return {"arm": arm, "seed": seed, **json.loads(kept.read_text())}


def at_update(run: TrainingRun, update: int, corpus: Corpus) -> dict[str, Any]:
    """Return the roles of all heads with a lasting sink after an update, and the movement of the main sinks."""
    tokenizer = choose_tokenizer(run.recipe, corpus)
    model = model_of(network_at(run, update, tokenizer), tokenizer, name=run.recipe.name)
    rows, predictable = held_out_rows(run.recipe, tokenizer, corpus, WINDOWS)
    mask_id = None if run.recipe.objective == "next_token" else tokenizer.mask_token_id
    found = find_roles_on(model, [one.probe for one in hold_out(rows, predictable, mask_id=mask_id)])
    heads = [
        {
            "layer": one.layer,
            "head": one.head,
            "role": one.role,
            "reason": one.reason,
            "token": one.token,
            "need": one.need,
            **{name: known.mean for name in TOLD if (known := one.measured.get(name)) is not None},
        }
        for one in found.heads
    ]
    counts = {role: found.count(role) for role in ROLES}
    return {"update": update, "counts": counts, "heads": heads} | ({} if mask_id is None else movement(model, rows))


def write_roles(given: argparse.Namespace, corpus: Corpus) -> None:
    """Measure the roles of a run after the updates asked for, and write them."""
    run, moments = open_run(given.roles_of), []
    for update in given.at:
        moments.append(at_update(run, update, corpus))
        print(update, moments[-1]["counts"], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    document = {**made_by(), "recipe": run.recipe.name, "windows": WINDOWS, "moments": moments}
    given.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the arms asked for and write every arm of the folder that is finished."""
    parser = Arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--roles-of", type=Path, metavar="RUN")
    parser.add_argument("--at", type=int, nargs="*", default=[], metavar="UPDATE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--eager", action="store_true", help="does not compile the layers")
    given = parser.parse_args(arguments)
    corpus = open_corpus(given.data)
    if given.roles_of is not None:
        write_roles(given, corpus)
        return
    if given.work is None:
        parser.error("expected --work, or --roles-of")
    for seed in given.seeds:
        for arm in given.arms:
            print(json.dumps(run_arm(arm, seed, given, corpus)), flush=True)
    finished = [
        (one.parent.name.rpartition("-"), json.loads(one.read_text()))
        for one in sorted(given.work.glob("*/measured.json"))
    ]
    rows = [{"arm": arm, "seed": int(seed), **row} for (arm, _, seed), row in finished]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**made_by(), "updates": given.updates, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
