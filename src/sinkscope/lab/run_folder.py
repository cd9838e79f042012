"""The files of a training run: its recipe, its log, its state after the last save, and snapshots of its weights.

The state holds ``weight.NAME``, ``exp_avg.NAME``, ``exp_avg_sq.NAME`` and ``step.NAME`` for each parameter, and the number of the update.
Every file is written under another name and renamed, so that a kill leaves the previous one intact.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import TrainingError
from sinkscope.lab.recipes import Recipe

STATE, LOG, RECIPE, SNAPSHOTS = "training-state.safetensors", "training.jsonl", "recipe.json", "snapshots"


LATER = ("sink_token", "text", "first_token", "weighting", "snapshots")
LATER_OF_ARCHITECTURE = ("positions", "tied")
LATER_OF_CANVASES = ("templates",)
"""Fields that recipes of earlier versions lack; their runs used today's defaults."""


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Raise TrainingError where a folder holds a run of another recipe.

    Raises:
        TrainingError: the folder holds a run of another recipe.
    """
    mine, path = _plain(recipe), out / RECIPE
    if not path.exists():
        return
    try:
        theirs = json.loads(path.read_text())
    except ValueError as error:
        raise TrainingError(
            f"{path}: expected the recipe of a run, found no JSON ({error}); delete the folder or choose another"
        ) from error
    defaults = _plain(Recipe("", "next_token", 1))
    theirs = {key: defaults[key] for key in LATER} | theirs
    for part, later in (("architecture", LATER_OF_ARCHITECTURE), ("canvases", LATER_OF_CANVASES)):
        theirs[part] = {key: defaults[part][key] for key in later} | (theirs.get(part) or {})
    different = [key for key in mine if mine[key] != theirs.get(key)]
    if different:
        changes = ", ".join(f"{key} {theirs.get(key)!r} → {mine[key]!r}" for key in different)
        raise TrainingError(f"{out} holds a run of another recipe ({changes}); train into another folder or delete this one")


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Write a resolved recipe into a folder that has none yet."""
    if not (out / RECIPE).exists():
        _write_whole(out / RECIPE, json.dumps(_plain(recipe), indent=2) + "\n")


def _plain(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(recipe)))


def save_state(out: Path, network: Any, optimiser: torch.optim.Optimizer, update: int) -> None:
    """Write the weights and the optimiser's moments after an update."""
    tensors = {f"weight.{name}": parameter.detach().contiguous() for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    _write_tensors(out / STATE, tensors, update)


def load_state(out: Path, network: Any, optimiser: torch.optim.Optimizer) -> int:
    """Set a network and its optimiser to the last saved state; return its number of updates, 0 where there is none."""
    from safetensors import safe_open

    if not (out / STATE).exists():
        return 0
    with safe_open(out / STATE, "pt") as state, torch.no_grad():
        update = int(state.metadata()["update"])
        for name, parameter in network.named_parameters():
            parameter.copy_(state.get_tensor(f"weight.{name}"))
            optimiser.state[parameter] = {
                "step": state.get_tensor(f"step.{name}").to(parameter.device),
                "exp_avg": state.get_tensor(f"exp_avg.{name}").to(parameter.device),
                "exp_avg_sq": state.get_tensor(f"exp_avg_sq.{name}").to(parameter.device),
            }
    return update


def save_snapshot(out: Path, network: Any, update: int) -> None:
    """Write the weights after an update, in bf16, without the optimiser."""
    (out / SNAPSHOTS).mkdir(exist_ok=True)
    tensors = {name: parameter.detach().to("cpu", torch.bfloat16).contiguous() for name, parameter in network.named_parameters()}
    _write_tensors(out / SNAPSHOTS / f"update-{update:06d}.safetensors", tensors, update)


def cut_log(out: Path, update: int) -> None:
    """Drop the rows of the log that are newer than the state from which a run resumes."""
    path = out / LOG
    if path.exists():
        kept = [line for line in path.read_text().splitlines() if line.endswith("}") and json.loads(line)["update"] <= update]
        _write_whole(path, "".join(line + "\n" for line in kept))


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor], update: int) -> None:
    from safetensors.torch import save_file

    beside = path.with_suffix(".writing")
    save_file(tensors, beside, metadata={"update": str(update)})
    os.replace(beside, path)


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".writing")
    beside.write_text(text)
    os.replace(beside, path)
