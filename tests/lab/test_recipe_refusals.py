import dataclasses
import stat

import pytest

from sinkscope.errors import CallError, TrainingError
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.checkpoint import train_checkpoint
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
        ({"updates": 0}, "updates: Input should be greater than or equal to 1, found 0"),
        ({"warmup_share": 2.0}, "warmup_share: Input should be less than or equal to 1, found 2.0"),
        ({"objective": "x"}, "objective: Input should be 'masked_diffusion'"),
        ({"weighting": "z"}, "weighting: Input should be '1/p' or 'flat'"),
        (
            {"architecture": dataclasses.replace(SMALL.architecture, positions="x")},
            "architecture.positions: Input should",
        ),
    ],
)
def test_a_recipe_with_a_value_out_of_bounds_is_not_trained(tmp_path, change, message):
    with pytest.raises(CallError, match=f"^recipe: {message}"):
        train(dataclasses.replace(SMALL, **change), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_shipped_recipe_may_be_trained(name, tmp_path):
    check_recipe(RECIPES[name], tmp_path / "out")


def test_a_training_goes_into_a_folder_named_by_a_path_or_by_text(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CallError, match="expected a folder, found a file; choose another name"):
        train(SMALL, tmp_path / "file", progress=False)
    train(SMALL, str(tmp_path / "out"), progress=False)
    assert read_recipe(tmp_path / "out" / RECIPE)["clip"] == 1.0


def test_a_training_stops_where_its_loss_is_no_number(tmp_path):
    """An infinite rate of learning shows in the weights of the second update; what is saved stays finite."""
    recipe = dataclasses.replace(SMALL, learning_rate=1e30, updates=5, log_every=5, save_every=2)
    message = "small, update 2: expected a finite .*, found (nan|inf); train with a lower learning_rate than 1e[+]30"
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
