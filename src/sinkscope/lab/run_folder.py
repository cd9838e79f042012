"""The files of a training run: its recipe, its log, its state after the last save, and snapshots of its weights.

The state holds ``weight.NAME``, ``exp_avg.NAME``, ``exp_avg_sq.NAME`` and ``step.NAME`` for each parameter, and the
number of the update. State and snapshots hold the checksum of their run's recipe too, by which those of another run are
told. Every file is written under another name and renamed, so that a kill leaves the previous one intact.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinkscope.checksums import checksum_of, compare_checksum, compare_file, compare_sealed, sealed, with_checksum
from sinkscope.documents import (
    check_fields,
    check_regular,
    describe,
    exists,
    parse_json,
    read_json_object,
    read_lines,
    shown,
)
from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.recipes import Recipe
from sinkscope.locks import names_in
from sinkscope.models.devices import is_out_of_memory
from sinkscope.work_items import differences

STATE, LOG, RECIPE, SNAPSHOTS = "training-state.safetensors", "training.jsonl", "recipe.json", "snapshots"
WEIGHTS = "model.safetensors"


LATER = ("decay_updates", "sink_token", "text", "nulls", "first_token", "weighting", "snapshots")
LATER_OF_ARCHITECTURE = ("positions", "tied")
LATER_OF_CANVASES = ("templates",)
"""Fields that recipes of earlier versions lack; their runs used today's defaults."""


ADVICE = "delete the folder or choose another"
_ANEW = f"delete {STATE} to begin anew"
_NO_STATE = "expected the state of this run, found a file that is damaged or of another network"
UNFINISHED_CHECKPOINT = "checkpoint.writing"
_FINISHED = "weights_sha256"
_ADDED_AT_THE_END = ("command", "torch", _FINISHED)


@contextmanager
def telling_failures(out: Path) -> Iterator[None]:
    """Raise TrainingError where the body cannot write into the folder of a run, or memory does not suffice."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        path = error.filename or out  # a library's own folder, too
        raise TrainingError(
            f"{path} cannot be written ({error.strerror or error}); make room and run the same command again"
        ) from error
    except SafetensorError as error:
        raise TrainingError(f"{out} cannot be written; make room and run the same command again") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"{out}: there is not enough memory to train; use a smaller recipe or a machine with more"
        ) from error


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Raise an error for a recipe that cannot be trained, and where a folder holds a run of another one, or files that no run made.

    Raises:
        CallError: a value of the recipe is out of bounds, or there is a file, or a folder with files of something else.
        TrainingError: the folder holds a run of another recipe, or a recipe that is damaged.
    """
    from sinkscope.lab.recipe_schema import RecipeFile

    mine, path = _plain(recipe), out / RECIPE
    check_fields(mine, RecipeFile, "recipe", CallError)
    if exists(out) and not out.is_dir():
        raise CallError(f"{out}: expected a folder, found a file; choose another name")
    names = [name for name in names_in(out) if not name.endswith(".writing")] if out.is_dir() else []
    if names and RECIPE not in names:
        raise CallError(f"{out} holds files of something else ({names[0]} …); choose another folder or an empty one")
    if not names:
        return
    theirs = read_recipe(path)
    stored = theirs
    defaults = _plain(Recipe("", "next_token", 1))
    theirs = {key: defaults[key] for key in LATER} | theirs
    for part, later in (("architecture", LATER_OF_ARCHITECTURE), ("canvases", LATER_OF_CANVASES)):
        theirs[part] = {key: defaults[part][key] for key in later} | (theirs.get(part) or {})
    different = differences({key: theirs.get(key) for key in mine}, mine)
    if changes := ", ".join(f"{name} {describe(old)} → {describe(new)}" for name, old, new in different):
        raise TrainingError(
            f"{out} holds a run of another recipe ({changes}); train into another folder or delete this one"
        )
    _check_checkpoint(stored, out, names)


def _check_checkpoint(stored: Mapping[str, Any], out: Path, names: Sequence[str]) -> None:
    """Raise TrainingError where a folder has weights or a config.json that its run did not write."""
    if _FINISHED in stored and WEIGHTS in names:
        check_finished(stored, out)
    elif "command" not in stored:  # which a run adds when it is finished
        strange = [name for name in (WEIGHTS, "config.json") if name in names]
        if strange and not (out / UNFINISHED_CHECKPOINT).exists():
            raise TrainingError(
                f"{out}: expected a run that is not finished, found {strange[0]}, which it did not write; {ADVICE}"
            )


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
    from safetensors import SafetensorError, safe_open

    path = out / STATE
    if not exists(path):
        return 0
    check_regular(path, TrainingError, _ANEW)
    try:
        with safe_open(path, "pt") as state:
            return _update_of(state, path)
    except SafetensorError as error:
        raise TrainingError(f"{path}: {_NO_STATE}; {_ANEW}") from error


def _update_of(state: Any, path: Path) -> int:
    update = (state.metadata() or {}).get("update", "")
    if not re.fullmatch(r"[0-9]{1,9}", update):
        raise TrainingError(f"{path}: update: expected a whole number, found {update[:60]!r}; {_ANEW}")
    return int(update)


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe of a run, as it is stored.

    Raises:
        TrainingError: it cannot be read, a field does not fit, or it was changed.
    """
    from sinkscope.lab.recipe_schema import RecipeFile

    found = read_json_object(path, TrainingError, ADVICE)
    check_fields(found, RecipeFile, str(path), TrainingError, ADVICE)
    compare_checksum(found, path, TrainingError, ADVICE)
    return found


def finish_recipe(out: Path, weights: str, **more: str) -> None:
    """Add to the recipe of a run what its checkpoint is: the sha256 of the weights, and how they were made."""
    write_object(out / RECIPE, with_checksum(read_recipe(out / RECIPE) | {**more, _FINISHED: weights}))


def run_mark(out: Path) -> str:
    """Return the checksum of the recipe of a run, without what its end adds to it; its state and its snapshots hold it."""
    return checksum_of(
        {name: value for name, value in read_recipe(out / RECIPE).items() if name not in _ADDED_AT_THE_END}
    )


def check_mark(found: str | None, path: Path, out: Path, advice: str) -> None:
    """Raise TrainingError for the mark of a state or a snapshot of another run; None is that of a file of an earlier version."""
    if found not in (None, run_mark(out)):
        raise TrainingError(
            f"{path}: expected weights of the run of {out / RECIPE}, found those of another run; {advice}"
        )


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Write a resolved recipe into a folder that has none yet."""
    if not (out / RECIPE).exists():
        write_object(out / RECIPE, with_checksum(_plain(recipe)))


def _plain(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(recipe), default=_number))


def _number(value: Any) -> Any:
    """Return Python's number for one of NumPy."""
    if isinstance(value, np.generic):
        return value.item()
    raise CallError(f"recipe: expected numbers and texts, found {shown(value)}")


def save_state(out: Path, network: Any, optimiser: torch.optim.Optimizer, update: int) -> None:
    """Write the weights and the optimiser's moments after an update."""
    tensors = {f"weight.{name}": parameter.detach().contiguous() for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    _write_tensors(out / STATE, tensors, update, out)


def load_state(out: Path, network: Any, optimiser: torch.optim.Optimizer) -> int:
    """Set a network and its optimiser to the last saved state; return its number of updates, 0 where there is none."""
    from safetensors import SafetensorError, safe_open

    path = out / STATE
    if not exists(path):
        return 0
    check_regular(path, TrainingError, _ANEW)
    compare_sealed(path, TrainingError, _ANEW)
    try:
        with safe_open(path, "pt") as state, torch.no_grad():
            check_mark((state.metadata() or {}).get("run"), path, out, _ANEW)
            update = _update_of(state, path)
            for name, parameter in network.named_parameters():
                tensors = {
                    kind: state.get_tensor(f"{kind}.{name}") for kind in ("weight", "step", "exp_avg", "exp_avg_sq")
                }
                for kind, tensor in tensors.items():
                    if kind != "step" and tensor.shape != parameter.shape:
                        found, expected = tuple(tensor.shape), tuple(parameter.shape)
                        raise TrainingError(f"{path}: {kind}.{name}: expected shape {expected}, found {found}; {_ANEW}")
                parameter.copy_(tensors.pop("weight"))
                optimiser.state[parameter] = {kind: tensor.to(parameter.device) for kind, tensor in tensors.items()}
    except SafetensorError as error:
        raise TrainingError(f"{path}: {_NO_STATE}; {_ANEW}") from error
    return update


def save_snapshot(out: Path, network: Any, update: int) -> None:
    """Write the weights after an update, in bf16, without the optimiser."""
    (out / SNAPSHOTS).mkdir(exist_ok=True)
    tensors = {
        name: parameter.detach().to("cpu", torch.bfloat16).contiguous()
        for name, parameter in network.named_parameters()
    }
    _write_tensors(out / SNAPSHOTS / f"update-{update:06d}.safetensors", tensors, update, out)


def cut_log(out: Path, update: int) -> None:
    """Drop the rows of the log that are newer than the state from which a run resumes."""
    path = out / LOG
    if not exists(path):
        return
    kept = []
    for number, line in read_lines(path, TrainingError, ADVICE):
        if line.endswith("}"):  # a kill may have cut the last row
            row = parse_json(line, f"{path}, line {number}", TrainingError, ADVICE, any_number=True)
            done = row.get("update") if isinstance(row, dict) else None
            if not isinstance(done, int):
                raise TrainingError(
                    f"{path}, line {number}: expected a row with its update, found {line[:60]!r}; {ADVICE}"
                )
            if done <= update:
                kept.append(line + "\n")
    _write_whole(path, ["".join(kept).encode()])


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor], update: int, out: Path) -> None:
    from safetensors.torch import save

    _write_whole(path, sealed(save(tensors, {"update": str(update), "run": run_mark(out)})))


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object under another name, and rename it."""
    _write_whole(path, [f"{json.dumps(content, indent=2)}\n".encode()])


def _write_whole(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file under another name, always the same, so that what a kill leaves is overwritten, and rename it once it is on the disk."""
    beside = path.with_name(path.name + ".writing")
    with beside.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
