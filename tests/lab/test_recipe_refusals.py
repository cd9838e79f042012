import dataclasses
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.checkpoint import train_checkpoint
from sinkscope.lab.nulls import NullTask
from sinkscope.lab.recipes import RECIPES, Architecture, Recipe
from sinkscope.lab.run_folder import LOG, RECIPE, STATE, check_recipe, read_recipe
from sinkscope.lab.training import train

SMALL = Recipe(
    "small",
    "next_token",
    updates=2,
    architecture=Architecture(layers=1, hidden_size=16, heads=2, kv_heads=2, intermediate_size=8, max_positions=128),
    canvases=CanvasMix(144, (72,), (1.0,)),
    autocast=False,
)
NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": NAN}, "clip: expected a finite number, found nan"),
        ({"learning_rate": INFINITE}, "learning_rate: expected a finite number, found inf"),
        ({"learning_rate": -1.0}, "learning_rate: expected a number from 0.0 upwards, found -1.0"),
        ({"weight_decay": -1.0}, "weight_decay: expected a number from 0.0 upwards, found -1.0"),
        ({"warmup_share": 2.0}, "warmup_share: expected a number up to 1.0, found 2.0"),
        ({"final_share": -1.0}, "final_share: expected a number from 0.0 upwards, found -1.0"),
        ({"whole_canvas_share": 1.5}, "whole_canvas_share: expected a number up to 1.0, found 1.5"),
        ({"betas": (1.0, 1.0)}, r"betas\[0\]: expected a number below 1.0, found 1.0"),
        ({"nulls": NullTask(2, "placed"), "seed": -2}, "expected a seed from 0 upwards with nulls, .*, found -2"),
        ({"save_every": 0}, "save_every: expected a number from 1 upwards, found 0"),
        ({"log_every": 0}, "log_every: expected a number from 1 upwards, found 0"),
        ({"validate_every": 0}, "validate_every: expected a number from 1 upwards, found 0"),
    ],
)
def test_a_recipe_with_a_value_out_of_bounds_is_not_trained(tmp_path, change, message):
    with pytest.raises(CallError, match=f"^recipe: {message}"):
        train(dataclasses.replace(SMALL, **change), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("record", "change", "message"),
    [
        (SMALL, {"objective": "x"}, "objective: expected masked_diffusion, next_token or shifted_diffusion, found 'x'"),
        (SMALL, {"weighting": "z"}, "weighting: expected 1/p or flat, found 'z'"),
        (SMALL, {"first_token": "z"}, "first_token: expected bos or text, found 'z'"),
        (SMALL.architecture, {"positions": "x"}, "positions: expected rotary or learned, found 'x'"),
    ],
)
def test_what_is_none_of_the_choices_makes_no_recipe(record, change, message):
    with pytest.raises(CallError, match=f"^{message}$"):
        dataclasses.replace(record, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": -1.0}, "architecture.rope_theta: expected a number above 0.0, found -1.0"),
        ({"layers": 0}, "architecture.layers: expected a number from 1 upwards, found 0"),
        ({"heads": 0}, "architecture.heads: expected a number from 1 upwards, found 0"),
        ({"heads": 3}, "architecture: expected a hidden_size that .*, found hidden_size 16, heads 3 and kv_heads 2"),
        (
            {"hidden_size": 18},
            "architecture: expected a hidden_size that .*, found hidden_size 18, heads 2 and kv_heads 2",
        ),
        (
            {"kv_heads": 3},
            "architecture: expected .* heads that the kv_heads divide, found hidden_size 16, heads 2 and kv_heads 3",
        ),
        (
            {"positions": "learned", "max_positions": 50},
            "expected architecture.max_positions from 72 upwards, .*, found 50",
        ),
    ],
)
def test_an_architecture_out_of_bounds_is_not_trained(tmp_path, change, message):
    recipe = dataclasses.replace(SMALL, architecture=dataclasses.replace(SMALL.architecture, **change))
    with pytest.raises(CallError, match=f"^recipe: {message}"):
        train(recipe, tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": ()}, "canvases.lengths: expected at least 1 values, found a list of 0"),
        ({"weights": (0.0,)}, r"canvases.weights\[0\]: expected a number above 0.0, found 0.0"),
        ({"weights": (NAN,)}, r"canvases.weights\[0\]: expected a finite number, found nan"),
        ({"weights": (1.0, 2.0)}, "canvases: expected as many weights as lengths, found 2 and 1"),
        ({"lengths": (72, 73), "weights": (1e308, 1e308)}, "canvases: expected weights whose sum is finite, found inf"),
        ({"tokens": 0}, "canvases.tokens: expected a number from 1 upwards, found 0"),
        ({"tokens": 10}, "expected canvases.tokens for a canvas of the longest length, found 10 and 72"),
        ({"lengths": (10**6,)}, "expected canvases.tokens for a canvas of the longest length, found 144 and 1000000"),
        ({"code_share": 2.0}, "canvases.code_share: expected a number up to 1.0, found 2.0"),
        ({"templates": ("zz",)}, r"canvases.templates\[0\]: expected 'buy', .* or 'class', found 'zz'"),
    ],
)
def test_canvases_out_of_bounds_are_not_trained_on(tmp_path, change, message):
    recipe = dataclasses.replace(SMALL, canvases=dataclasses.replace(SMALL.canvases, **change))
    with pytest.raises(CallError, match=f"^recipe: {message}"):
        train(recipe, tmp_path / "out", progress=False)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_shipped_recipe_may_be_trained(name, tmp_path):
    check_recipe(RECIPES[name], tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            Recipe,
            {"name": "x", "objective": "next_token", "updates": 2.5},
            "updates: expected a whole number, found 2.5",
        ),
        (
            Recipe,
            {"name": "x", "objective": "next_token", "updates": 2, "autocast": "x"},
            "autocast: expected True or False, found 'x'",
        ),
        (
            Recipe,
            {"name": "x", "objective": "next_token", "updates": 2, "nulls": 5},
            "nulls: expected NullTask or None, found 5",
        ),
        (
            Recipe,
            {"name": "x", "objective": "next_token", "updates": 2, "betas": (0.9,)},
            "betas: expected 2 items, found 1",
        ),
        (
            Recipe,
            {"name": "x", "objective": "next_token", "updates": 2, "betas": (object(), 0.9)},
            r"betas\[0\]: expected a number, found object",
        ),
        (Architecture, {"layers": "6"}, "layers: expected a whole number, found '6'"),
        (CanvasMix, {"templates": "buy"}, "templates: expected a list of texts, found 'buy'"),
        (NullTask, {"nulls": 1.5, "answers": "placed"}, "nulls: expected a whole number, found 1.5"),
    ],
)
def test_a_recipe_is_made_of_the_right_types(kind, given, message):
    with pytest.raises(CallError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"watch": 5}, "watch: expected a function or None, found 5"),
        ({"texts": 5}, "texts: expected Texts or Corpus or None, found 5"),
        ({"device": "x"}, "device 'x' cannot be used here"),
    ],
)
def test_arguments_of_a_training_are_checked_before_it_begins(tmp_path, given, message):
    with pytest.raises(CallError, match=message):
        train(SMALL, tmp_path / "out", progress=False, **given)
    assert not (tmp_path / "out").exists()


def test_a_training_goes_into_a_folder_named_by_a_path_or_by_text(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CallError, match="expected a folder, found a file; choose another name"):
        train(SMALL, tmp_path / "file", progress=False)
    train(dataclasses.replace(SMALL, clip=np.float32(1), updates=np.int64(1)), str(tmp_path / "out"), progress=False)
    assert read_recipe(tmp_path / "out" / RECIPE)["clip"] == 1.0


def test_a_watch_may_change_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    out = train_checkpoint(SMALL, "out", watch=lambda network, update: os.chdir(tmp_path / "other"))
    assert out == Path("out") and (tmp_path / out / "model.safetensors").exists() and not os.listdir(tmp_path / "other")


def test_a_training_stops_where_its_loss_is_no_number(tmp_path):
    """An infinite rate of learning shows in the weights of the second update; what is saved stays finite."""
    recipe = dataclasses.replace(SMALL, learning_rate=1e30, updates=5, log_every=5, save_every=2)
    message = "small, update 2: expected a finite .*, found (nan|inf); train with a lower learning_rate than 1e[+]30 into another folder"
    with pytest.raises(TrainingError, match=message):
        train(recipe, tmp_path, progress=False)
    assert not (tmp_path / STATE).exists() and (tmp_path / LOG).read_text() == ""


def test_canvases_without_room_for_an_answer_are_refused(tmp_path):
    short = dataclasses.replace(SMALL, objective="masked_diffusion", canvases=CanvasMix(40, (10,), (1.0,)))
    with pytest.raises(
        TrainingError,
        match="expected canvases with room for an answer, found none on 4 of 10 tokens; choose longer ones",
    ):
        train(short, tmp_path, progress=False)


@pytest.mark.parametrize("updates", [0, -5])
def test_a_run_without_updates_is_refused(updates):
    with pytest.raises(CallError, match=f"updates: expected at least 1, found {updates}"):
        dataclasses.replace(RECIPES["lab-diffusion"], updates=updates)


def test_weights_are_as_readable_as_what_lies_beside_them(tmp_path):
    tiny = Architecture(layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=16, max_positions=1024)
    recipe = dataclasses.replace(RECIPES["lab-autoregressive"], architecture=tiny, updates=1, autocast=False)
    out = train_checkpoint(recipe, tmp_path / "out")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert modes["model.safetensors"] == modes["recipe.json"]


@pytest.mark.parametrize(
    ("name", "sink", "instead", "message"),
    [
        ("lab-autoregressive", "token-end", "token", "expected a bidirectional network"),
        (
            "lab-diffusion-learned-positions",
            "token",
            "logit",
            "'token': expected rotated positions, found learned ones",
        ),
    ],
)
def test_a_variant_that_does_not_fit_leaves_the_folder_free(tmp_path, name, sink, instead, message):
    tiny = dataclasses.replace(
        RECIPES[name].architecture, layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=16
    )
    recipe = dataclasses.replace(RECIPES[name], architecture=tiny, updates=1, autocast=False, sink_token=sink)
    with pytest.raises(CallError, match=message):
        train_checkpoint(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    train_checkpoint(dataclasses.replace(recipe, sink_token=instead), tmp_path / "out")
