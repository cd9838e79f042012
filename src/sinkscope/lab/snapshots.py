"""The networks along a training run, and the held-out canvases on which they are measured."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import PROMPT
from sinkscope.lab.recipes import Recipe
from sinkscope.lab.run_folder import RECIPE, SNAPSHOTS, WEIGHTS, compare_weights, read_recipe
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.texts import Corpus, Texts
from sinkscope.lab.training import source_of
from sinkscope.runs.files import compare_update, sha256_of

_NAME = re.compile(r"update-([0-9]{6,9})\.safetensors")
HELD_OUT = -1  # the stream of batches that no training draws, and the first of its batches


@dataclass(frozen=True)
class TrainingRun:
    """A training run on disk: its recipe as it was resolved, and the file of each snapshot by its update, of which the
    finished checkpoint is the last one.
    """

    folder: Path
    recipe: Recipe
    weights: Mapping[int, Path]

    def checksums(self, update: int) -> tuple[str, ...]:
        """Return the sha256 of a snapshot's file; of the last update also of the snapshot beside the checkpoint."""
        files = (self.weights[update], self.folder / SNAPSHOTS / f"update-{update:06d}.safetensors")
        return tuple(dict.fromkeys(sha256_of(file) for file in files if file.exists()))


def open_run(folder: str | Path) -> TrainingRun:
    """Open the folder of a training run, finished or not.

    Raises:
        CallError: it holds no run, or a run without snapshots.
        TrainingError: its recipe is damaged or of another version, or its finished weights are another run's.
    """
    folder = Path(folder)
    if not (folder / RECIPE).exists():
        raise CallError(f"{folder}: expected the folder of a training run, with its {RECIPE}")
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
    from safetensors.torch import load_file

    path = run.weights[update]
    compare_weights(path, run.folder, "put back the snapshot of this run, or take it out")
    if path.name != WEIGHTS:
        compare_update(path, update, TrainingError)
    network = build_network(run.recipe, tokenizer)
    stored = {name: tensor.float() for name, tensor in load_file(path).items()}
    if run.recipe.architecture.tied:
        stored.setdefault("lm_head.weight", stored["model.embed_tokens.weight"])
    try:
        network.load_state_dict(stored)
    except RuntimeError as error:
        raise TrainingError(f"{path}: expected the weights of {run.recipe.name}, found others") from error
    return network.eval()


def held_out_rows(
    recipe: Recipe, tokenizer: Any, texts: Texts | Corpus | None, count: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return canvases that no training saw: the tokens of each, and where a token may be predicted."""
    draw, batch = source_of(recipe, tokenizer, texts), HELD_OUT
    tokens: list[np.ndarray] = []
    predictable: list[np.ndarray] = []
    while len(tokens) < count:
        canvases = draw(HELD_OUT, batch)
        tokens += list(canvases.tokens.numpy())
        predictable += list((canvases.answers != PROMPT).numpy())
        batch -= 1
    return tokens[:count], predictable[:count]
