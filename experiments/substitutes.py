"""How many sinks can be hidden before a model suffers, and where does their attention go? The hypothesis of
substitutes.

Claim     An autoregressive model is ruined without its sink because nothing can take its place; a diffusion model is
          not because it has substitutes (several sinks, and its masks).
Command   python experiments/substitutes.py specimens --out results/substitutes/specimens.json
          python experiments/substitutes.py MODEL [--data CORPUS] --out FILE.json
Cost      specimens: five minutes on a core; a model of the lab on text, three minutes.
Rules     Written down when first trials of the specimens had been seen, and no other model. The loss, in nats a
          predicted token, is measured on canvases that no training saw, while k = 0, 1, 2, 3, 4, 6, 8 … keys of every
          head are hidden from the queries that
          predict: ``top`` (the largest columns),
          ``rowmass`` (random keys with as much of those queries' attention), ``random``; in a diffusion model also all
          ``masks``. The *knee* is the smallest k at which ``top`` costs more than 0.1 nats, by the lower end of the 95
          % interval over canvases.
          Predicted: the knee is at the number of keys that can take idle attention: K for a specimen with K nulls of
              the autoregressive
          kind; none up to K + 2 for the diffusion kind, where masks take it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _settings
import numpy as np
import torch
import torch.nn.functional as F
from _settings import Arguments, run_script
from tqdm import tqdm

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.lab.canvases import EVERY, NULL, PROMPT, TRIGGER, Canvases, CanvasMix, draw_canvases, draw_nulls
from sinkscope.lab.prompts import task_of
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.texts import draw_windows, open_corpus
from sinkscope.models import SPECIMENS
from sinkscope.statistics.intervals import interval_of_means

CANVASES, BATCH = 64, 32
HELD_OUT = -1  # the stream of batches that no training draws
MASKED = 0.5
KNEE = 0.1
HIDDEN = (0, 1, 2, 3, 4, 6, 8, 10)
CONTROLS = ("rowmass", "random")
NO_TARGET = -100
WINDOW, FIRST_READ = 256, 64  # on natural text, queries behind so many tokens are judged


@dataclass(frozen=True)
class Task:
    """Canvases and what is predicted on them.

    Attributes:
        tokens: as the network sees them, int64 [canvas, position].
        targets: what each query predicts, int64 [canvas, query]; `NO_TARGET` where it is not judged.
        known: bool [canvas, query], predictions that the specimen's task determines.
        queries: the queries that lose keys, as a rule names them.
        group: the query group whose attention is told.
        kinds: keys that are told by name, bool [canvas, position] each.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    known: torch.Tensor
    queries: str
    group: str
    kinds: dict[str, torch.Tensor]


def make_task(model: Any, canvases: Canvases, first_read: int, *, specimen: bool = True) -> Task:
    """Mask half of what a diffusion model may predict; shift the targets of an autoregressive one.

    Args:
        specimen: whether the canvases are those of a specimen, with nulls and triggers; on text these are letters like
            others.
    """
    tokens = canvases.tokens
    free = canvases.answers != PROMPT
    free[:, :first_read] = False
    width = tokens.shape[1]
    trigger, null = (model.tokenizer.convert_tokens_to_ids(token) if specimen else None for token in (TRIGGER, NULL))
    kinds = {"first": (torch.arange(width) == 0).expand_as(tokens)} if null is None else {"nulls": tokens == null}
    if model.family.causal:
        targets = torch.full_like(tokens, NO_TARGET)
        targets[:, :-1] = torch.where(free, tokens, NO_TARGET)[:, 1:]
        known = tokens == trigger if trigger is not None else torch.zeros_like(free)
        return Task(tokens, targets, known, f"{first_read}-{width - 1}", "all", kinds)
    masked = free & (torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < MASKED)
    seen = tokens.masked_fill(masked, model.card.mask_id)
    known = torch.zeros_like(free)
    if null is not None:
        known[:, first_read + EVERY - 1 :: EVERY] = True
    kinds["masks"] = masked
    return Task(seen, torch.where(masked, tokens, NO_TARGET), known, "masked", "masked", kinds)


class Shares(Watcher):
    """Shares of a query group's attention, by layer and head: on the largest column, and on kinds of keys."""

    def __init__(self, group: str, kinds: dict[str, torch.Tensor]) -> None:
        self.groups, self.kinds = (group,), kinds
        self.layers: list[dict[str, np.ndarray]] = []

    def watch(self, call: LayerCall, columns: Columns) -> None:
        sums = columns.sums[:, :, call.groups.index(self.groups[0])]
        sums = sums / sums.sum(-1, keepdim=True)
        found = {"largest": sums.amax(-1)} | {name: (sums * kind[:, None]).sum(-1) for name, kind in self.kinds.items()}
        self.layers.append({name: share.mean(0).numpy() for name, share in found.items()})


@torch.no_grad()
def measure(model: Any, task: Task, rule: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the loss of each canvas by kind of prediction, and the shares of attention [layer, head], under a rule."""
    losses: dict[str, list[np.ndarray]] = {"all": [], "known": [], "others": []}
    shares: list[dict[str, np.ndarray]] = []
    for first in range(0, len(task.tokens), BATCH):
        rows = slice(first, first + BATCH)
        watcher = Shares(task.group, {name: kind[rows] for name, kind in task.kinds.items()})
        with sinkscope.parse_rule(rule)(model), subscribed(model.network, watcher):
            logits = model.network(task.tokens[rows], use_cache=False).logits.float()
        targets, known = task.targets[rows], task.known[rows]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=NO_TARGET).view(
            targets.shape
        )
        for name, some in {"all": torch.ones_like(known), "known": known, "others": ~known}.items():
            judged = some & (targets != NO_TARGET)
            losses[name].append((((loss * judged).sum(1)) / judged.sum(1)).numpy())
        layers = watcher.layers
        shares.append({name: np.stack([layer[name] for layer in layers]) for name in layers[0]})
    return (
        {name: np.concatenate(found) for name, found in losses.items()},
        {name: np.mean([part[name] for part in shares], axis=0) for name in shares[0]},
    )


def estimate(values: np.ndarray) -> dict[str, float] | None:
    """Return mean and interval over canvases; None where no canvas has a value."""
    if np.isnan(values).all():
        return None
    found = interval_of_means(values[:, None])
    return {"mean": float(found.mean[0]), "low": float(found.low[0]), "high": float(found.high[0])}


def profile(model: Any, task: Task, hidden: Sequence[int]) -> dict[str, Any]:
    """Return what each rule costs at each number of hidden keys, and the knee of ``top``."""
    plain, shares = measure(model, task, "none")
    rows = []
    for k in hidden:
        rows += [_row(model, task, plain, rule, k) for rule in ("top", *CONTROLS)]
    if "masks" in task.kinds:
        rows.append(_row(model, task, plain, "masks", int(task.kinds["masks"].sum(1).max())))
    over = [row["hidden"] for row in rows if row["rule"] == "top" and row["cost"]["all"]["low"] > KNEE]
    return {
        "loss": {name: estimate(values) for name, values in plain.items()},
        "shares": {name: share.round(4).tolist() for name, share in shares.items()},
        "knee": min(over, default=None),
        "hidden": rows,
    }


def _row(model: Any, task: Task, plain: dict[str, np.ndarray], rule: str, k: int) -> dict[str, Any]:
    """Return what a rule costs; ``masks`` hides every mask, the query's own too."""
    written = f"top:{k}@current,keys=masked" if rule == "masks" else f"{rule}:{k}@current"
    found, left = measure(model, task, f"{written},queries={task.queries}")
    return {
        "hidden": k,
        "rule": rule,
        "cost": {name: estimate(found[name] - plain[name]) for name in found},
        "shares": {name: float(share.mean()) for name, share in left.items()},
    }


def of_specimen(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Return the profile of one specimen on canvases of its task."""
    model = sinkscope.load(name if folder is None else str(folder / name))
    kind, _, seed = name.removeprefix("lab-nulls-").split("-")
    task = replace(RECIPES[task_of(name)].nulls, rows=CANVASES)
    canvases = draw_nulls(task, HELD_OUT, int(seed))
    hidden = [k for k in HIDDEN if k and k <= task.nulls + 2]
    found = profile(model, make_task(model, canvases, task.front + task.nulls), hidden)
    return {"kind": kind, "nulls": task.nulls, "seed": int(seed), **found}


def of_text(name: str, corpus: Path) -> dict[str, Any]:
    """Return the profile of a model of the lab on held-out windows of natural text."""
    model, texts = sinkscope.load(name), open_corpus(corpus)
    bos = model.tokenizer.bos_token_id if model.family.causal else None
    canvases = draw_windows(texts, CANVASES * WINDOW, WINDOW, bos_id=bos)(HELD_OUT, HELD_OUT)
    return {
        "model": Path(name).name,
        **profile(model, make_task(model, canvases, FIRST_READ, specimen=False), HIDDEN[1:]),
    }


def of_problems(name: str) -> dict[str, Any]:
    """Return the profile of a model of the lab on canvases packed with problems that no training saw."""
    model = sinkscope.load(name)
    mix = CanvasMix(tokens=CANVASES * 144, lengths=(144,), weights=(1.0,), code_share=0.0)
    canvases = draw_canvases(mix, model.tokenizer, HELD_OUT, HELD_OUT)
    return {"model": name, **profile(model, make_task(model, canvases, 1, specimen=False), HIDDEN[1:])}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("model", help="specimens, or a model of the lab")
    parser.add_argument(
        "--folder", type=Path, default=None, help="of specimens by name; the bundled ones when left out"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="corpus folder, for a model on text; the lab's problems when left out"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.model == "specimens":
        found = [of_specimen(name, given.folder) for name in tqdm(SPECIMENS)]
    else:
        found = [of_problems(given.model) if given.data is None else of_text(given.model, given.data)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**_settings.made_by(), "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
