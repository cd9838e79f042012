"""Training: exact resumption, the rate, the checkpoint that it leaves, and recipes that cannot be trained."""

import dataclasses
import json
import stat

import pytest
import torch
from safetensors.torch import load_file

import sinkscope
from sinkscope.errors import CallError, ModelError, TrainingError
from sinkscope.lab import starting_network, training
from sinkscope.lab.canvases import CanvasMix, draw_canvases
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import RECIPES, Architecture, Recipe
from sinkscope.lab.run_folder import LOG, RECIPE, SNAPSHOTS, STATE, check_recipe
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import learning_rate, train, train_checkpoint

TINY = Recipe(
    "tiny",
    "masked_diffusion",
    updates=12,
    architecture=Architecture(layers=1, hidden_size=24, heads=3, kv_heads=3, intermediate_size=40, max_positions=96),
    canvases=CanvasMix(tokens=288, lengths=(72, 96), weights=(0.7, 0.3)),
    learning_rate=1e-2,
    log_every=1,
    validate_every=4,
    save_every=5,
    snapshots=(0, 6, 12),
)
CAUSAL = dataclasses.replace(TINY, name="tiny-causal", objective="next_token")


def rows_of(folder):
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def assert_same_run(folder, other):
    assert rows_of(folder) == rows_of(other)
    mine, theirs = load_file(folder / STATE), load_file(other / STATE)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for update in TINY.snapshots:
        file = f"{SNAPSHOTS}/update-{update:06d}.safetensors"
        assert (folder / file).read_bytes() == (other / file).read_bytes()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(TINY, folder, progress=False)


def test_a_killed_run_goes_on_to_the_same_losses_and_weights(whole_run, tmp_path, monkeypatch):
    """Beside the last state: a state being written, an empty line, a log line cut short."""

    def draw_or_stop(mix, tokenizer, seed, update):
        if update == 8:
            raise KeyboardInterrupt
        return draw_canvases(mix, tokenizer, seed, update)

    monkeypatch.setattr(starting_network, "draw_canvases", draw_or_stop)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, tmp_path, progress=False)
    monkeypatch.undo()
    assert [row["update"] for row in rows_of(tmp_path)] == list(range(1, 9))
    (tmp_path / f"{STATE}.writing").write_bytes(b"\0" * 50)
    with (tmp_path / LOG).open("a") as log:
        log.write('\n{"update": 18, "loss": 3.1')
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.device("meta"):  # another default device changes nothing
        resumed = train(TINY, tmp_path, progress=False)
    assert torch.equal(torch.rand(3), expected), "the caller's random numbers stay"
    assert_same_run(tmp_path, whole_run[0])
    for (name, mine), (_, theirs) in zip(resumed.named_parameters(), whole_run[1].named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_the_log_and_the_recipe(whole_run):
    rows = rows_of(whole_run[0])
    assert [row["update"] for row in rows] == list(range(1, 13))
    assert [row["update"] for row in rows if "validation_loss" in row] == [4, 8, 12]
    assert [row["learning_rate"] for row in rows] == [learning_rate(TINY, update) for update in range(12)]
    stored = json.loads((whole_run[0] / RECIPE).read_text())
    assert stored.pop("checksum") and stored == json.loads(json.dumps(dataclasses.asdict(TINY)))


def test_the_learning_rate_rises_peaks_and_ends_at_its_final_share():
    recipe = dataclasses.replace(TINY, updates=1000, learning_rate=2e-3, warmup_share=0.05, final_share=0.1)
    rates = [learning_rate(recipe, update) for update in range(1000)]
    assert rates[24] == pytest.approx(1e-3) and rates[49] == rates[50] == max(rates) == pytest.approx(2e-3)
    assert sorted(rates[:50]) == rates[:50] and sorted(rates[50:], reverse=True) == rates[50:]
    assert rates[50 + 950 // 2] == pytest.approx((2e-3 + 2e-4) / 2) and rates[-1] == pytest.approx(2e-4, rel=1e-3)
    longer = dataclasses.replace(recipe, updates=1500, decay_updates=1000)
    assert [learning_rate(longer, update) for update in (*range(1000), 1400)] == [*rates, pytest.approx(2e-4)]


def test_gradients_are_clipped_and_norms_do_not_decay(tmp_path):
    """With a bound of 0 nothing moves but by weight decay, which leaves norms at one."""
    recipe = dataclasses.replace(TINY, updates=2, clip=0.0, weight_decay=0.5)
    network, fresh = train(recipe, tmp_path, progress=False), build_network(TINY, build_tokenizer())
    assert torch.equal(network.model.norm.weight, fresh.model.norm.weight)
    shrunk = network.lm_head.weight / fresh.lm_head.weight
    assert shrunk.max() < 1 and torch.allclose(shrunk, shrunk.mean(), atol=1e-4)
    assert rows_of(tmp_path)[-1]["gradient_norm"] > 0


@pytest.mark.parametrize("name", [name for name in sorted(RECIPES) if not name.startswith(("lab-sink-", "adapted"))])
def test_shipped_recipes_build_what_they_say(name, tmp_path):
    recipe, task = RECIPES[name], RECIPES[name].nulls
    check_recipe(recipe, tmp_path)
    small = dataclasses.replace(TINY.architecture, max_positions=1024)
    network = build_network(dataclasses.replace(recipe, architecture=small, start_from=None), build_tokenizer())
    lengths = recipe.canvases.lengths if task is None else (task.front + task.nulls + task.body,)
    assert recipe.name == name and recipe.architecture.max_positions >= max(lengths)
    assert getattr(network.config, "is_causal", True) is (recipe.objective == "next_token")
    assert sum(recipe.canvases.weights) == pytest.approx(1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [TINY, CAUSAL], ids=lambda recipe: recipe.objective)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="trains on a CUDA device; there is none here")
def test_training_runs_on_a_gpu(recipe, tmp_path):
    network = train(dataclasses.replace(recipe, updates=3), tmp_path, device="cuda", progress=False)
    assert network.lm_head.weight.is_cuda
    assert rows_of(tmp_path)[-1]["loss"] > 0


def test_gradients_that_a_watch_leaves_are_not_trained_on(whole_run, tmp_path):
    def watch(network, done):
        network(torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()

    train(TINY, tmp_path, progress=False, watch=watch)
    assert_same_run(tmp_path, whole_run[0])


BRIEF = dataclasses.replace(TINY, updates=3, save_every=2)


@pytest.mark.parametrize("objective", ["masked_diffusion", "next_token"])
def test_a_checkpoint_is_a_stock_folder_that_loads(tmp_path, objective):
    recipe, folder = dataclasses.replace(BRIEF, objective=objective), tmp_path / "model"
    train_checkpoint(recipe, folder, command="sinkscope train tiny")
    trained = train(recipe, tmp_path / "state", progress=False).state_dict()
    model = sinkscope.load(str(folder))
    assert model.card.stored_dtype == "bfloat16" and model.family.causal is (objective == "next_token")
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, trained[name].to(torch.bfloat16)), name
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", RECIPE, LOG} <= set(modes)
    assert not {name for name in modes if name == STATE or "writing" in name}
    assert modes["model.safetensors"] == modes[RECIPE]
    described = json.loads((folder / RECIPE).read_text())
    assert described["command"] == "sinkscope train tiny" and described["torch"] == torch.__version__


def test_a_finished_checkpoint_is_not_trained_again(tmp_path, monkeypatch):
    train_checkpoint(BRIEF, tmp_path)
    (tmp_path / STATE).write_bytes(b"left by a kill behind the last rename")
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    train_checkpoint(BRIEF, tmp_path)
    assert not (tmp_path / STATE).exists()
    with pytest.raises(TrainingError, match="seed 0 → 1"):
        train_checkpoint(dataclasses.replace(BRIEF, seed=1), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        train_checkpoint(BRIEF, tmp_path)


def test_a_kill_while_saving_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    """Stopped before the last rename there are no weights, and the same command then makes the same ones."""
    train_checkpoint(BRIEF, tmp_path / "whole")
    replace = training.os.replace

    def replace_some(source, target):
        if str(source).endswith("checkpoint.writing/model.safetensors"):
            raise InterruptedError
        replace(source, target)

    monkeypatch.setattr(training.os, "replace", replace_some)
    with pytest.raises(InterruptedError):
        train_checkpoint(BRIEF, tmp_path / "cut")
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    train_checkpoint(BRIEF, tmp_path / "cut")
    mine, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert mine == theirs
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {one.name for one in (tmp_path / "whole").iterdir()}


def test_a_recipe_with_a_value_out_of_bounds_is_not_trained(tmp_path):
    with pytest.raises(CallError, match="recipe: updates: Input should be greater than or equal to 1, found 0"):
        train(dataclasses.replace(TINY, updates=0), tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_a_training_stops_where_its_loss_is_no_number(tmp_path):
    """An infinite rate of learning shows in the weights of the second update; what is saved stays finite."""
    recipe = dataclasses.replace(CAUSAL, learning_rate=1e30, updates=5, log_every=5, save_every=2)
    found = "tiny-causal, update 2: expected a finite loss, found .*(nan|inf).*"
    message = f"{found}; train with a lower learning_rate than 1e[+]30"
    with pytest.raises(TrainingError, match=message):
        train(recipe, tmp_path, progress=False)
    assert not (tmp_path / STATE).exists() and (tmp_path / LOG).read_text() == ""
