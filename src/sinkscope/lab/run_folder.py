"""The folder of a training run: its recipe, its log, its state after the last save, and snapshots of its weights.

The state holds weights and moments of each parameter, and the number of the update. State and snapshots hold the
checksum of their run's recipe.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT
from sinkscope.lab.recipes import Recipe
from sinkscope.lab.starting_network import build_network, source_of
from sinkscope.lab.texts import Corpus, Texts
from sinkscope.models.folders import ADAPTER_WEIGHTS
from sinkscope.runs import files
from sinkscope.runs.folder import differences, names_in

STATE, LOG, RECIPE, SNAPSHOTS = "training-state.safetensors", "training.jsonl", "recipe.json", "snapshots"
WEIGHTS, UNFINISHED_CHECKPOINT = "model.safetensors", "checkpoint.writing"
ADVICE = "delete the folder or choose another"
_ROOM = "make room and run the same command again"
_ANEW = f"delete {STATE} to begin anew"
FINISHED = "weights_sha256"
_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")
HELD_OUT = -1  # the stream of batches that no training draws, and the first of its batches


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Raise CallError for a recipe with a value out of bounds, or a folder with files of something else; TrainingError
    for a run of another recipe, or damaged files.
    """
    mine = _plain(recipe)
    files.validated(Recipe, mine, "recipe", CallError)
    names = [name for name in names_in(out) if not name.endswith(".writing")] if out.is_dir() else []
    if not names:
        return
    if RECIPE not in names:
        raise CallError(f"{out} holds files of something else ({names[0]} …); choose another folder or an empty one")
    different = differences(_plain(read_recipe(out)), mine)
    if changes := ", ".join(f"{name} {old!r} → {new!r}" for name, old, new in different):
        raise TrainingError(f"{out} holds a run of another recipe ({changes}); {ADVICE}")


def weights_of(recipe: Recipe) -> str:
    """Return the name of the file of a finished run's weights."""
    return ADAPTER_WEIGHTS if recipe.adaptation is not None and recipe.adaptation.rank else WEIGHTS


def read_recipe(out: Path) -> Recipe:
    """Return the recipe of a run; raise TrainingError where it, or the weights of the finished run, were changed."""
    stored = _stored(out)
    recipe = files.validated(Recipe, stored, out / RECIPE, TrainingError)
    if FINISHED in stored and (weights := out / weights_of(recipe)).exists():
        files.compare_file(weights, stored[FINISHED], TrainingError, f"its {RECIPE}", ADVICE)
    return recipe


def write_recipe(recipe: Recipe, out: Path, **more: str) -> None:
    """Write a resolved recipe into a folder; in the end with the sha256 of its weights, and how they were made."""
    content = (_stored(out) if (out / RECIPE).exists() else _plain(recipe)) | more
    text = json.dumps(files.with_checksum(content), indent=2) + "\n"
    files.write_whole(out / RECIPE, text.encode(), TrainingError, _ROOM)


def saved_update(out: Path) -> int:
    """Return the update from which a run that was killed resumes; 0 where it begins anew."""
    path = out / STATE
    return int(files.compare_sealed(path, TrainingError, _ANEW)["update"]) if path.exists() else 0


def compare_weights(path: Path, out: Path, advice: str, update: int | None = None) -> dict[str, str]:
    """Return the metadata of a file of weights; raise TrainingError for a damaged one, or of another run or update."""
    metadata = files.compare_sealed(path, TrainingError, advice, update)
    if metadata.get("run") not in (None, _mark(out)):
        raise TrainingError(f"{path}: expected weights of the run in {out}, found those of another run; {advice}")
    return metadata


def save_state(out: Path, network: Any, optimiser: torch.optim.Optimizer, update: int) -> None:
    """Write the weights and the optimiser's moments after an update."""
    tensors = {}
    for name, parameter in _trained(network):
        tensors[f"weight.{name}"] = parameter.detach().contiguous()
        tensors |= {f"{kind}.{name}": value for kind, value in optimiser.state[parameter].items()}
    _write_tensors(out / STATE, tensors, update, out)


def load_state(out: Path, network: Any, optimiser: torch.optim.Optimizer) -> int:
    """Set a network and its optimiser to the last saved state; return its number of updates, 0 where there is none."""
    if not (out / STATE).exists():
        return 0
    metadata = compare_weights(out / STATE, out, _ANEW)
    stored = load_file(out / STATE)
    with torch.no_grad():
        for name, parameter in _trained(network):
            parameter.copy_(stored[f"weight.{name}"])
            moments = {kind: stored[f"{kind}.{name}"] for kind in ("step", "exp_avg", "exp_avg_sq")}
            optimiser.state[parameter] = {kind: one.to(parameter.device) for kind, one in moments.items()}
    return int(metadata["update"])


def _trained(network: Any) -> list[tuple[str, Any]]:
    return [(name, one) for name, one in network.named_parameters() if one.requires_grad]


def save_snapshot(out: Path, network: Any, update: int) -> None:
    """Write the weights after an update, in bf16, without the optimiser."""
    (out / SNAPSHOTS).mkdir(exist_ok=True)
    weights = {name: one.detach().to("cpu", torch.bfloat16).contiguous() for name, one in _trained(network)}
    _write_tensors(out / SNAPSHOTS / f"update-{update:06d}.safetensors", weights, update, out)


def cut_log(out: Path, update: int) -> None:
    """Drop the rows of the log that are newer than the state from which a run resumes, and one that a kill has cut."""
    if (out / LOG).exists():
        lines = [line for line in (out / LOG).read_text().split("\n") if line.endswith("}")]
        kept = [line + "\n" for line in lines if json.loads(line)["update"] <= update]
        files.write_whole(out / LOG, "".join(kept).encode(), TrainingError, _ROOM)


@dataclass(frozen=True)
class TrainingRun:
    """A training run on disk, with the files of its snapshots by update; a finished checkpoint is the last."""

    folder: Path
    recipe: Recipe
    weights: Mapping[int, Path]

    def checksums(self, update: int) -> tuple[str, ...]:
        """Return the sha256 of a snapshot's file; of the last update also of the snapshot beside the checkpoint."""
        both = (self.weights[update], self.folder / SNAPSHOTS / f"update-{update:06d}.safetensors")
        return tuple(dict.fromkeys(files.sha256_of(file) for file in both if file.exists()))


def open_run(folder: str | Path) -> TrainingRun:
    """Open the folder of a training run, finished or not; TrainingError where it holds none, CallError no snapshots."""
    folder = Path(folder)
    recipe = read_recipe(folder)
    paths = sorted((folder / SNAPSHOTS).glob("*.safetensors"))
    found = {int(match[1]): path for path in paths if (match := _NAME.fullmatch(path.name))}
    if (folder / WEIGHTS).exists():
        found[recipe.updates] = folder / WEIGHTS
    if not found:
        raise CallError(f"{folder}: expected snapshots of a training run, found none yet; recipes on text write them")
    return TrainingRun(folder, recipe, found)


def check_data(run: TrainingRun, texts: Texts | Corpus | None) -> None:
    """Raise CallError where a run was trained on other data than is given."""
    trained, given = run.recipe.data or "the data of the lab", texts.fingerprint if texts else "the data of the lab"
    if trained != given:
        raise CallError(f"{run.folder} was trained on {trained}, found {given}; pass the same as --data")


def network_at(run: TrainingRun, update: int, tokenizer: Any) -> Any:
    """Return the network after an update that has a snapshot; raise TrainingError for a damaged or another's file."""
    path = run.weights[update]
    named = update if path.parent.name == SNAPSHOTS else None
    compare_weights(path, run.folder, "put back the snapshot of this run, or take it out", named)
    network, stored = build_network(run.recipe, tokenizer), load_file(path)
    if stored.keys() != dict(_trained(network)).keys():
        raise TrainingError(f"{path}: expected the weights of {run.recipe.name}, found others")
    network.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, strict=False)
    return network.eval()


def held_out_rows(
    recipe: Recipe, tokenizer: Any, texts: Texts | Corpus | None, count: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return canvases that no training saw: the tokens of each, and where a token may be predicted."""
    draw, batch, rows = source_of(recipe, tokenizer, texts), HELD_OUT, []
    while len(rows) < count:
        canvases = draw(HELD_OUT, batch)
        rows += zip(canvases.tokens.numpy(), (canvases.answers != PROMPT).numpy(), strict=True)
        batch -= 1
    return [tokens for tokens, _ in rows[:count]], [predictable for _, predictable in rows[:count]]


def _plain(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(recipe)))


def _stored(out: Path) -> dict[str, Any]:
    found = files.read_json_object(out / RECIPE, TrainingError, ADVICE)
    files.compare_checksum(found, out / RECIPE, TrainingError, ADVICE)
    return found


def _mark(out: Path) -> str:
    """Return the checksum of the recipe of a run without what its end adds."""
    added = ("command", "torch", FINISHED)
    return files.checksum_of({key: one for key, one in _stored(out).items() if key not in added})


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor], update: int, out: Path) -> None:
    content = files.sealed(save(tensors, {"update": str(update), "run": _mark(out)}))
    files.write_whole(path, content, TrainingError, _ROOM)
