"""Trains a recipe into a stock Hugging Face folder: weights in bf16, tokenizer, recipe, log and command."""

import dataclasses
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import TrainingError
from sinkscope.lab.corpus import Corpus
from sinkscope.lab.recipes import Recipe
from sinkscope.lab.run_folder import (
    RECIPE,
    STATE,
    UNFINISHED_CHECKPOINT,
    WEIGHTS,
    check_recipe,
    finish_recipe,
)
from sinkscope.lab.starting_network import choose_tokenizer
from sinkscope.lab.texts import Texts
from sinkscope.lab.training import Watch, train
from sinkscope.models.devices import find_device
from sinkscope.models.loading import outline, quiet
from sinkscope.runs.files import sealed
from sinkscope.runs.folder import claimed_folder


def train_checkpoint(
    recipe: Recipe,
    out: str | Path,
    *,
    texts: Texts | Corpus | None = None,
    device: str = "cpu",
    command: str = "",
    watch: Watch | None = None,
) -> Path:
    """Train a recipe into a checkpoint that `sinkscope.load` reads; a run that was killed is resumed. ``watch`` is as
    in `train`.

    The weights are written last, by a rename, so a folder with weights is finished.

    Raises:
        CallError: a recipe out of bounds, a folder with something else, or a device that cannot be used.
        TrainingError: the folder holds a run of another recipe, cannot be written, or another process writes into it.
        ModelError: the run is finished, and a file of its checkpoint beside the weights is missing or damaged.
    """
    find_device(device)
    out = Path(out)
    with claimed_folder(out, TrainingError):
        recipe = dataclasses.replace(recipe, data=None if texts is None else texts.fingerprint)
        check_recipe(recipe, out)
        if (out / WEIGHTS).exists():
            outline(str(out))  # what else a checkpoint needs must be there as well
        else:
            network = train(recipe, out, texts=texts, device=device, watch=watch)
            _save(network, choose_tokenizer(recipe, texts), out, command)
        (out / STATE).unlink(missing_ok=True)  # a kill may have come between the last rename and this
    return out


def _save(network: Any, tokenizer: Any, out: Path, command: str) -> None:
    """Write the checkpoint into another folder, then move its files, the weights last."""
    beside = out / UNFINISHED_CHECKPOINT
    shutil.rmtree(beside, ignore_errors=True)
    with quiet():
        network.to("cpu", torch.bfloat16).save_pretrained(beside)
        tokenizer.save_pretrained(beside)
    content = b"".join(sealed((beside / WEIGHTS).read_bytes()))
    (beside / WEIGHTS).write_bytes(content)
    finish_recipe(out, hashlib.sha256(content).hexdigest(), command=command, torch=torch.__version__)
    # safetensors writes files that only their owner may read.
    (beside / WEIGHTS).chmod((out / RECIPE).stat().st_mode & 0o777)
    for path in sorted(beside.iterdir(), key=lambda path: path.name == WEIGHTS):
        os.replace(path, out / path.name)
    beside.rmdir()
