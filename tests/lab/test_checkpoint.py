import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file

import sinkscope
from sinkscope.errors import CallError, ModelError, TrainingError
from sinkscope.lab import checkpoint
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.checkpoint import train_checkpoint
from sinkscope.lab.recipes import Architecture, Recipe
from sinkscope.lab.run_folder import LOG, RECIPE, STATE
from sinkscope.lab.training import train

TINY = Recipe(
    "tiny",
    "masked_diffusion",
    updates=6,
    architecture=Architecture(layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=40, max_positions=96),
    canvases=CanvasMix(tokens=144, lengths=(72,), weights=(1.0,)),
    log_every=1,
    save_every=2,
)


@pytest.mark.parametrize("objective", ["masked_diffusion", "next_token"])
def test_a_checkpoint_is_a_stock_folder_that_loads(tmp_path, objective):
    recipe = dataclasses.replace(TINY, objective=objective)
    train_checkpoint(recipe, tmp_path / "model", command="sinkscope train tiny")
    trained = train(recipe, tmp_path / "state").state_dict()
    model = sinkscope.load(str(tmp_path / "model"))
    assert model.card.stored_dtype == "bfloat16"
    assert model.family.causal is (objective == "next_token")
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, trained[name].to(torch.bfloat16)), name
    kept = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", RECIPE, LOG} <= kept
    assert not {name for name in kept if name == STATE or "writing" in name}
    described = json.loads((tmp_path / "model" / RECIPE).read_text())
    assert described["command"] == "sinkscope train tiny"
    assert described["seed"] == 0
    assert described["torch"] == torch.__version__


def test_a_finished_checkpoint_is_not_trained_again(tmp_path, monkeypatch):
    train_checkpoint(TINY, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    monkeypatch.setattr(checkpoint, "train", lambda *_, **__: pytest.fail("trained again"))
    train_checkpoint(TINY, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with pytest.raises(TrainingError, match="seed 0 → 1"):
        train_checkpoint(dataclasses.replace(TINY, seed=1), tmp_path)


def test_a_finished_checkpoint_that_lacks_a_file_is_told(tmp_path):
    train_checkpoint(TINY, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        train_checkpoint(TINY, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json"):
        train_checkpoint(TINY, tmp_path)


@pytest.mark.parametrize("renamed", [0, 1, 3])
def test_a_kill_while_saving_leaves_nothing_that_looks_finished(tmp_path, monkeypatch, renamed):
    """Stopped after any number of renames there are no weights, and the same command then makes the same ones."""
    train_checkpoint(TINY, tmp_path / "whole")
    replace, done = checkpoint.os.replace, []

    def replace_some(source, target):
        if "checkpoint.writing" in str(source):
            if len(done) == renamed:
                raise InterruptedError
            done.append(target)
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", replace_some)
    with pytest.raises(InterruptedError):
        train_checkpoint(TINY, tmp_path / "cut")
    monkeypatch.undo()
    assert len(done) == renamed
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    train_checkpoint(TINY, tmp_path / "cut")
    mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


def test_a_state_left_behind_a_finished_checkpoint_is_removed(tmp_path):
    """Killed between the last rename and the removal of the state."""
    train_checkpoint(TINY, tmp_path)
    (tmp_path / STATE).write_bytes(b"three times as large as the weights")
    train_checkpoint(TINY, tmp_path)
    assert not (tmp_path / STATE).exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CallError, match="model: expected a folder, found a file on the way"):
        train_checkpoint(TINY, tmp_path / "file" / "model")
