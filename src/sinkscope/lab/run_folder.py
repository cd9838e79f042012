"""The files of a training run: its recipe, its log, its state after the last save, and snapshots of its weights.

The state holds ``weight.NAME``, ``exp_avg.NAME``, ``exp_avg_sq.NAME`` and ``step.NAME`` for each parameter, and the
number of the update. State and snapshots hold the checksum of their run's recipe too, which tells them from those of
another run. Every file is written under another name and renamed, so that a kill leaves the previous one intact.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.recipes import Recipe
from sinkscope.runs.files import (
    checksum_of,
    compare_checksum,
    compare_file,
    compare_sealed,
    read_json_object,
    sealed,
    with_checksum,
    write_whole,
)
from sinkscope.runs.folder import differences, names_in

STATE, LOG, RECIPE, SNAPSHOTS = "training-state.safetensors", "training.jsonl", "recipe.json", "snapshots"
WEIGHTS, UNFINISHED_CHECKPOINT = "model.safetensors", "checkpoint.writing"
ADVICE = "delete the folder or choose another"
_ROOM = "make room and run the same command again"
_ANEW = f"delete {STATE} to begin anew"
_FINISHED = "weights_sha256"
_ADDED_AT_THE_END = ("command", "torch", _FINISHED)


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Raise an error for a recipe that cannot be trained, and where a folder holds another run, or files that no run
    made.

    Raises:
        CallError: a value of the recipe is out of bounds, or there is a file, or a folder with files of something else.
        TrainingError: the folder holds a run of another recipe, or a recipe that is damaged.
    """
    mine, path = _plain(recipe), out / RECIPE
    recipe_from(mine, "recipe", CallError)
    if out.exists() and not out.is_dir():
        raise CallError(f"{out}: expected a folder, found a file; choose another name")
    names = [name for name in names_in(out) if not name.endswith(".writing")] if out.is_dir() else []
    if names and RECIPE not in names:
        raise CallError(f"{out} holds files of something else ({names[0]} …); choose another folder or an empty one")
    if not names:
        return
    stored = read_recipe(path)
    different = differences(_plain(recipe_from(stored, str(path))), mine)
    if changes := ", ".join(f"{name} {old!r} → {new!r}" for name, old, new in different):
        raise TrainingError(f"{out} holds a run of another recipe ({changes}); {ADVICE}")
    if WEIGHTS in names and _FINISHED not in stored:
        raise TrainingError(f"{out}: expected a run that is not finished, found {WEIGHTS} of another; {ADVICE}")
    if WEIGHTS in names:
        check_finished(stored, out)


def recipe_from(values: Mapping[str, Any], where: str, failure: type[Exception] = TrainingError) -> Recipe:
    """Return the recipe that a ``recipe.json`` holds; fields that it lacks, as those of earlier versions do, have
    defaults.

    Raises:
        failure: values that are none of a recipe.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        raise failure(f"{where}: {name}: {wrong['msg']}, found {wrong['input']!r}") from error


def check_finished(stored: Mapping[str, Any], out: Path) -> None:
    """Compare the weights of a finished run with what its recipe says of them; recipes of earlier versions say nothing.

    Raises:
        TrainingError: they are others.
    """
    if _FINISHED in stored:
        compare_file(out / WEIGHTS, stored[_FINISHED], TrainingError, f"its {RECIPE}", ADVICE)


def saved_update(out: Path) -> int:
    """Return the update from which a run that was killed resumes; 0 where it begins anew.

    Raises:
        TrainingError: its state is damaged.
    """
    from safetensors import safe_open

    path = out / STATE
    if not path.exists():
        return 0
    compare_sealed(path, TrainingError, _ANEW)
    with safe_open(path, "pt") as state:
        return int(state.metadata()["update"])


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe of a run, as it is stored.

    Raises:
        TrainingError: it cannot be read, or was changed.
    """
    found = read_json_object(path, TrainingError, ADVICE)
    compare_checksum(found, path, TrainingError, ADVICE)
    return found


def finish_recipe(out: Path, weights: str, **more: str) -> None:
    """Add to the recipe of a run what its checkpoint is: the sha256 of the weights, and how they were made."""
    write_object(out / RECIPE, with_checksum(read_recipe(out / RECIPE) | {**more, _FINISHED: weights}))


def run_mark(out: Path) -> str:
    """Return the checksum of the recipe of a run without what its end adds; its state and its snapshots hold it."""
    stored = read_recipe(out / RECIPE)
    return checksum_of({name: value for name, value in stored.items() if name not in _ADDED_AT_THE_END})


def check_mark(found: str | None, path: Path, out: Path, advice: str) -> None:
    """Raise TrainingError for the mark of a state or a snapshot of another run; files of earlier versions have none."""
    if found not in (None, run_mark(out)):
        where = out / RECIPE
        raise TrainingError(f"{path}: expected weights of the run of {where}, found those of another run; {advice}")


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Write a resolved recipe into a folder that has none yet."""
    if not (out / RECIPE).exists():
        write_object(out / RECIPE, with_checksum(_plain(recipe)))


def _plain(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(recipe)))


def save_state(out: Path, network: Any, optimiser: torch.optim.Optimizer, update: int) -> None:
    """Write the weights and the optimiser's moments after an update."""
    tensors = {f"weight.{name}": parameter.detach().contiguous() for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    _write_tensors(out / STATE, tensors, update, out)


def load_state(out: Path, network: Any, optimiser: torch.optim.Optimizer) -> int:
    """Set a network and its optimiser to the last saved state; return its number of updates, 0 where there is none."""
    from safetensors import safe_open

    path = out / STATE
    if not path.exists():
        return 0
    compare_sealed(path, TrainingError, _ANEW)
    with safe_open(path, "pt") as state, torch.no_grad():
        check_mark(state.metadata().get("run"), path, out, _ANEW)
        for name, parameter in network.named_parameters():
            kinds = ("weight", "step", "exp_avg", "exp_avg_sq")
            tensors = {kind: state.get_tensor(f"{kind}.{name}") for kind in kinds}
            for kind, tensor in tensors.items():
                if kind != "step" and tensor.shape != parameter.shape:
                    found, expected = tuple(tensor.shape), tuple(parameter.shape)
                    raise TrainingError(f"{path}: {kind}.{name}: expected shape {expected}, found {found}; {_ANEW}")
            parameter.copy_(tensors.pop("weight"))
            optimiser.state[parameter] = {kind: tensor.to(parameter.device) for kind, tensor in tensors.items()}
        return int(state.metadata()["update"])


def save_snapshot(out: Path, network: Any, update: int) -> None:
    """Write the weights after an update, in bf16, without the optimiser."""
    (out / SNAPSHOTS).mkdir(exist_ok=True)
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in network.named_parameters()
    }
    _write_tensors(out / SNAPSHOTS / f"update-{update:06d}.safetensors", tensors, update, out)


def cut_log(out: Path, update: int) -> None:
    """Drop the rows of the log that are newer than the state from which a run resumes, and one that a kill has cut."""
    path = out / LOG
    if path.exists():
        lines = [line for line in path.read_text().split("\n") if line.endswith("}")]
        kept = [line + "\n" for line in lines if json.loads(line)["update"] <= update]
        write_whole(path, "".join(kept).encode(), TrainingError, _ROOM)


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor], update: int, out: Path) -> None:
    from safetensors.torch import save

    content = sealed(save(tensors, {"update": str(update), "run": run_mark(out)}))
    write_whole(path, content, TrainingError, _ROOM)


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object under another name, and rename it."""
    write_whole(path, f"{json.dumps(content, indent=2)}\n".encode(), TrainingError, _ROOM)
