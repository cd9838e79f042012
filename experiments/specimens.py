"""Give an autoregressive specimen a substitute, and a diffusion specimen a single place for idle attention: do they
swap behaviour?

And what does `sinkscope roles` say of the trained specimens, whose truth is known from their task and from zeroing
their nulls?

Claim     An autoregressive model with a second idle place loses nothing with its null; a diffusion model whose idle
          attention is drawn to one place is ruined without it.
Command   python experiments/specimens.py reversed --work FOLDER --out results/substitutes/reversed.json
          python experiments/specimens.py roles --out results/substitutes/roles.json
Cost      six trainings of half a minute each on a core, which stay in FOLDER, and two minutes of measuring; three
          minutes for the roles.
Rules     Written down before any of these networks was trained. The specimens of one null (autoregressive) are trained
          again with a learned sink token, those without nulls (diffusion) with a learned logit in the softmax, which
          have a value and none; learned positions leave no place for a token. Three seeds, data and masks as in the
          bundled specimens. Hidden from the queries that
          predict: the null (the largest column), the sink, both, and in a diffusion model all masks. A loss above 0.1
          nats by the lower end of the 95 % interval over canvases counts. *Swapped*: in all three seeds the
          autoregressive network loses less than that without its null and more without null and sink; the diffusion
          network loses more without its sink.
          Of the roles, when three of the thirty had been seen: in the autoregressive specimens with K >= 1 nulls the
              sink is a null. It is
          *idle* where zeroing one null changes the predictions by less than 0.005 nats, else *broadcast* (all idle
          queries get the same of it), never *carrier*; and the number of keys to hide is K. Without nulls, and in the
          diffusion specimens, whose idle attention is spread over all masks, no head has a lasting sink on a null.
"""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _settings import Arguments, made_by, run_script
from substitutes import CANVASES, HELD_OUT, KNEE, NO_TARGET, Task, estimate, make_task
from tqdm import tqdm

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.lab.canvases import NULL, draw_nulls
from sinkscope.lab.prompts import answer_settings, problem_prompts, task_of
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.training import train_checkpoint
from sinkscope.models import SPECIMENS
from sinkscope.roles import find_roles

ARMS = {
    "autoregressive": ("lab-nulls-autoregressive-1", "token"),
    "diffusion": ("lab-nulls-diffusion-0", "logit"),
}
SEEDS = (0, 1, 2)
PROMPTS = 24


class OnSink(Watcher):
    """The predicting queries' attention, by where it goes: the sink, the largest column, other tokens."""

    def __init__(self, group: str) -> None:
        self.groups = (group,)
        self.shares: dict[str, float] = {}

    def watch(self, call: LayerCall, columns: Columns) -> None:
        text = columns.sums[:, :, 0]
        own = torch.zeros(1) if columns.prefix is None else columns.prefix[:, :, 0].sum(-1)
        whole = text.sum(-1) + own
        self.shares = {"sink": float((own / whole).mean()), "largest": float((text.amax(-1) / whole).mean())}


@torch.no_grad()
def losses(model: Any, task: Task, *rules: str) -> tuple[np.ndarray, dict[str, float]]:
    """Return the loss of each canvas with rules in force, and where the attention goes."""
    watcher = OnSink(task.group)
    with ExitStack() as stack:
        for rule in rules:
            stack.enter_context(
                sinkscope.parse_rule(
                    f"{rule},queries={task.queries}" if "@" in rule else f"{rule}@queries={task.queries}"
                )(model)
            )
        stack.enter_context(subscribed(model.network, watcher))
        logits = model.network(task.tokens, use_cache=False).logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), task.targets.flatten(), reduction="none", ignore_index=NO_TARGET).view(
        task.targets.shape
    )
    judged = task.targets != NO_TARGET
    return ((loss * judged).sum(1) / judged.sum(1)).numpy(), watcher.shares


def profile(kind: str, sink: str, seed: int, folder: Path | None) -> dict[str, Any]:
    """Return what one network loses without its null, its sink, both, and its masks."""
    name, _ = ARMS[kind]
    model = sinkscope.load(f"{name}-{seed}" if folder is None else str(folder))
    nulls = replace(RECIPES[name].nulls, rows=CANVASES)
    task = make_task(model, draw_nulls(nulls, HELD_OUT, seed), nulls.front + nulls.nulls)
    plain, shares = losses(model, task)
    rules: dict[str, tuple[str, ...]] = {"top": ("top:1@current",)}
    if sink != "none":
        rules |= {"sink": ("sink-token",), "sink and top": ("sink-token", "top:1@current")}
    if kind == "diffusion":
        masks = f"top:{int(task.kinds['masks'].sum(1).max())}@current,keys=masked"
        rules |= {"masks": (masks,)} | ({"sink and masks": ("sink-token", masks)} if sink != "none" else {})
    cost = {}
    for what, given in rules.items():
        found, left = losses(model, task, *given)
        cost[what] = {**(estimate(found - plain) or {}), "shares": left}
    return {"kind": kind, "sink": sink, "seed": seed, "loss": float(plain.mean()), "shares": shares, "cost": cost}


def swapped(found: list[dict[str, Any]], kind: str) -> bool:
    """Return the verdict of the rules for one kind."""
    mine = [one["cost"] for one in found if one["kind"] == kind and one["sink"] != "none"]
    if kind == "autoregressive":
        return all(one["top"]["low"] <= KNEE < one["sink and top"]["low"] for one in mine)
    return all(one["sink"]["low"] > KNEE for one in mine)


def judge(name: str) -> dict[str, object]:
    """Return the verdict on one specimen and whether it is what the rule says."""
    kind, nulls, seed = name.removeprefix("lab-nulls-").split("-")
    prompts = [row["prompt"] for row in problem_prompts(task_of(name), PROMPTS)]
    found = find_roles(sinkscope.load(name), prompts, **answer_settings(name))
    sinks = [
        {
            "role": one.role,
            "token": one.token,
            "to_hide": one.substitutes,
            "adds": one.measured["kl.sink.zero"].mean,
            "costs": one.measured["kl.sink"].mean,
            "share": one.measured["committed_share"].mean,
        }
        for one in found.heads
    ]
    if kind == "autoregressive" and int(nulls):
        (sink,) = sinks
        wanted = "idle" if sink["adds"] < found.rules.changed else "broadcast"
        right = (sink["role"], sink["token"], sink["to_hide"]) == (wanted, NULL, int(nulls))
    else:
        right = all(one["token"] != NULL for one in sinks)
    return {"kind": kind, "nulls": int(nulls), "seed": int(seed), "sinks": sinks, "right": right}


def write(out: Path, document: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**made_by(), **document}, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("what", choices=["reversed", "roles"])
    parser.add_argument("--work", type=Path, help="folder of the trainings; the same command goes on after a kill")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = []
    if given.what == "roles":
        found = [judge(name) for name in tqdm(SPECIMENS)]
        write(given.out, {"prompts": PROMPTS, "specimens": found})
        print(f"{sum(bool(one['right']) for one in found)} of {len(found)} as the rule says")
        return
    if given.work is None:
        parser.error("reversed needs --work")
    for kind, (name, sink) in ARMS.items():
        for seed in SEEDS:
            folder = given.work / f"{name}-{sink}-{seed}"
            train_checkpoint(replace(RECIPES[name], sink_token=sink, seed=seed), folder)
            found += [profile(kind, "none", seed, None), profile(kind, sink, seed, folder)]
    write(given.out, {"swapped": {kind: swapped(found, kind) for kind in ARMS}, "networks": found})


if __name__ == "__main__":
    run_script(main)
