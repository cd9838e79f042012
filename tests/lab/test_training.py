import dataclasses
import json
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch
from processes import ALIKE, environment
from safetensors.torch import load_file

from sinkscope.errors import TrainingError
from sinkscope.lab import training
from sinkscope.lab.canvases import CanvasMix, draw_canvases
from sinkscope.lab.recipes import RECIPES, Architecture, Recipe
from sinkscope.lab.run_folder import LOG, RECIPE, STATE
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import learning_rate, train
from sinkscope.lab.vocabulary import build_tokenizer

TINY = Recipe(
    "tiny",
    "masked_diffusion",
    updates=30,
    architecture=Architecture(layers=2, hidden_size=32, heads=4, kv_heads=4, intermediate_size=48, max_positions=96),
    canvases=CanvasMix(tokens=288, lengths=(72, 96), weights=(0.7, 0.3)),
    learning_rate=1e-2,
    autocast=True,
    log_every=1,
    validate_every=10,
    save_every=5,
)
CAUSAL = dataclasses.replace(TINY, name="tiny-causal", objective="next_token")

# A run that stands still in update 13, after the state of update 10 and the log of update 13, until it is killed.
STANDING_STILL = (
    ALIKE
    + """
import sys, time
from pathlib import Path
from sinkscope.lab import training
from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.recipes import Architecture, Recipe
draw = training.draw_canvases
def draw_or_wait(mix, tokenizer, seed, update):
    if update == 13:
        time.sleep(600)
    return draw(mix, tokenizer, seed, update)
training.draw_canvases = draw_or_wait
training.train({recipe!r}, Path(sys.argv[1]), progress=False)
"""
)


def rows_of(folder):
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def assert_same_run(folder, other):
    assert rows_of(folder) == rows_of(other)
    mine, theirs = load_file(folder / STATE), load_file(other / STATE)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def kill_while_training(recipe, folder, updates):
    """Starts a run in a process of its own and kills it once its log shows ``updates``."""
    script = STANDING_STILL.format(recipe=recipe)
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment())
    try:
        deadline = time.monotonic() + 120
        while not ((folder / LOG).exists() and len((folder / LOG).read_text().splitlines()) >= updates):
            assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(TINY, folder, progress=False)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_losses_and_weights(whole_run, tmp_path):
    whole, network = whole_run
    kill_while_training(TINY, tmp_path, updates=13)
    assert [row["update"] for row in rows_of(tmp_path)] == list(range(1, 14))
    assert rows_of(tmp_path)[:10] == rows_of(whole)[:10]
    assert not torch.equal(
        load_file(tmp_path / STATE)["weight.lm_head.weight"], load_file(whole / STATE)["weight.lm_head.weight"]
    )
    resumed = train(TINY, tmp_path, progress=False)
    assert_same_run(tmp_path, whole)
    for (name, mine), (_, theirs) in zip(resumed.named_parameters(), network.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_what_a_kill_leaves_half_written_is_ignored(whole_run, tmp_path, monkeypatch):
    """Beside a whole state: a state being written, an empty line, a log line cut short."""

    def draw_or_stop(mix, tokenizer, seed, update):
        if update == 17:
            raise KeyboardInterrupt
        return draw_canvases(mix, tokenizer, seed, update)

    monkeypatch.setattr(training, "draw_canvases", draw_or_stop)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, tmp_path, progress=False)
    monkeypatch.undo()
    (tmp_path / f"{STATE}.writing").write_bytes(b"\0" * 50)
    with (tmp_path / LOG).open("a") as log:
        log.write('\n{"update": 18, "loss": 3.1')
    train(TINY, tmp_path, progress=False)
    assert_same_run(tmp_path, whole_run[0])


def test_a_finished_run_is_left_as_it_is(whole_run):
    whole, network = whole_run
    log, state = (whole / LOG).read_bytes(), (whole / STATE).read_bytes()
    again = train(TINY, whole, progress=False)
    assert (whole / LOG).read_bytes() == log
    assert (whole / STATE).read_bytes() == state
    assert torch.equal(again.lm_head.weight, network.lm_head.weight)


def test_the_log(whole_run):
    rows = rows_of(whole_run[0])
    assert [row["update"] for row in rows] == list(range(1, 31))
    assert [row["update"] for row in rows if "validation_loss" in row] == [10, 20, 30]
    assert [row["learning_rate"] for row in rows] == [learning_rate(TINY, update) for update in range(30)]
    assert all(row["gradient_norm"] > 0 for row in rows)


def test_the_recipe_is_stored(whole_run):
    stored = json.loads((whole_run[0] / RECIPE).read_text())
    assert stored.pop("checksum") and stored == json.loads(json.dumps(dataclasses.asdict(TINY)))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [TINY, CAUSAL], ids=lambda recipe: recipe.objective)
def test_the_loss_goes_down(recipe, whole_run, tmp_path):
    if recipe is not TINY:
        train(recipe, tmp_path, progress=False)
    validation = [
        row["validation_loss"]
        for row in rows_of(whole_run[0] if recipe is TINY else tmp_path)
        if "validation_loss" in row
    ]
    assert validation[0] > validation[1] > validation[2]
    assert validation[2] < 0.8 * 6.12  # a uniform guess among 456 words costs 6.12 nats


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"updates": 40}, "updates 30 → 40"),
        ({"seed": 3}, "seed 0 → 3"),
        ({"objective": "next_token"}, "objective 'masked_diffusion' → 'next_token'"),
        ({"autocast": False}, "autocast True → False"),
    ],
)
def test_another_recipe_in_the_same_folder_is_refused(whole_run, change, named):
    whole, _ = whole_run
    state = (whole / STATE).read_bytes()
    with pytest.raises(TrainingError) as caught:
        train(dataclasses.replace(TINY, **change), whole, progress=False)
    assert named in str(caught.value)
    assert str(whole) in str(caught.value)
    assert (whole / STATE).read_bytes() == state
    assert json.loads((whole / RECIPE).read_text())["updates"] == 30


def test_a_recipe_file_cut_short_is_refused_by_name(tmp_path):
    (tmp_path / RECIPE).write_text('{"name": "tiny", "obj')
    with pytest.raises(TrainingError, match=r"recipe\.json"):
        train(TINY, tmp_path, progress=False)


def test_the_learning_rate_rises_peaks_and_ends_at_its_final_share():
    recipe = dataclasses.replace(TINY, updates=1000, learning_rate=2e-3, warmup_share=0.05, final_share=0.1)
    rates = [learning_rate(recipe, update) for update in range(1000)]
    assert rates[0] == pytest.approx(2e-3 / 50)
    assert rates[24] == pytest.approx(1e-3)
    assert rates[49] == rates[50] == max(rates) == pytest.approx(2e-3)
    assert all(before < after for before, after in pairwise(rates[:50]))
    assert all(before > after for before, after in pairwise(rates[50:]))
    middle = 50 + 950 // 2
    assert rates[middle] == pytest.approx((2e-3 + 2e-4) / 2)
    assert rates[-1] == pytest.approx(2e-4, rel=1e-3)
    assert learning_rate(recipe, 1000) == pytest.approx(2e-4)


def test_a_run_without_warm_up_starts_at_the_peak():
    assert learning_rate(dataclasses.replace(TINY, warmup_share=0.0), 0) == TINY.learning_rate
    assert learning_rate(dataclasses.replace(TINY, updates=1), 0) == TINY.learning_rate


def test_the_rate_stays_where_the_decay_has_ended():
    shorter = dataclasses.replace(TINY, updates=1000, learning_rate=1.0)
    longer = dataclasses.replace(shorter, updates=1500, decay_updates=1000)
    assert [learning_rate(longer, update) for update in range(1000)] == [
        learning_rate(shorter, update) for update in range(1000)
    ]
    assert all(learning_rate(longer, update) == pytest.approx(0.1) for update in range(1000, 1500))


@pytest.mark.slow
def test_runs_of_two_seeds_differ_and_of_one_agree():
    tokenizer = build_tokenizer()
    one, same, other = (
        build_network(dataclasses.replace(TINY, seed=seed), tokenizer).lm_head.weight for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_gradients_are_clipped(tmp_path):
    """With a bound of 0 nothing moves but by weight decay, which leaves norms at one."""
    still = train(dataclasses.replace(TINY, updates=2, clip=0.0, weight_decay=0.0), tmp_path, progress=False)
    fresh = build_network(TINY, build_tokenizer())
    assert torch.equal(still.lm_head.weight, fresh.lm_head.weight)
    assert rows_of(tmp_path)[-1]["gradient_norm"] > 0


def test_norms_do_not_decay(tmp_path):
    recipe = dataclasses.replace(TINY, updates=2, clip=0.0, weight_decay=0.5)
    network, fresh = train(recipe, tmp_path, progress=False), build_network(TINY, build_tokenizer())
    assert torch.equal(network.model.norm.weight, fresh.model.norm.weight)
    assert bool(network.lm_head.weight.norm() < fresh.lm_head.weight.norm())


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_shipped_recipes_build_what_they_say(name):
    recipe = RECIPES[name]
    network = build_network(
        dataclasses.replace(
            recipe, architecture=dataclasses.replace(TINY.architecture, max_positions=1024), start_from=None
        ),
        build_tokenizer(),
    )
    assert recipe.name == name
    room = (
        1024 if recipe.architecture.positions == "rotary" else 0
    )  # a table of positions has the rows that are trained
    task = recipe.nulls
    lengths = recipe.canvases.lengths if task is None else (task.front + task.nulls + task.body,)
    assert recipe.architecture.max_positions >= max(room if task is None else 0, *lengths)
    assert getattr(network.config, "is_causal", True) is (recipe.objective == "next_token")
    assert sum(recipe.canvases.weights) == pytest.approx(1.0)
    assert len(recipe.canvases.weights) == len(recipe.canvases.lengths)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [TINY, CAUSAL], ids=lambda recipe: recipe.objective)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="trains on a CUDA device; there is none here")
def test_training_runs_on_a_gpu(recipe, tmp_path):
    network = train(dataclasses.replace(recipe, updates=3), tmp_path, device="cuda", progress=False)
    assert network.lm_head.weight.is_cuda
    assert rows_of(tmp_path)[-1]["loss"] > 0


# What stands around a run


SHORT = dataclasses.replace(TINY, name="short", updates=4, validate_every=2)


@pytest.fixture(scope="module", params=[False, True], ids=["float32", "autocast"])
def short_run(request, tmp_path_factory):
    recipe, folder = dataclasses.replace(SHORT, autocast=request.param), tmp_path_factory.mktemp("short")
    train(recipe, folder, progress=False)
    return recipe, folder


def test_gradients_that_a_watch_leaves_are_not_trained_on(short_run, tmp_path):
    recipe, folder = short_run
    train(
        recipe,
        tmp_path,
        progress=False,
        watch=lambda network, done: network(torch.ones(1, 4, dtype=torch.long)).logits.sum().backward(),
    )
    assert_same_run(tmp_path, folder)


def test_a_run_leaves_the_random_numbers_of_its_caller(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(SHORT, tmp_path, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_a_training_under_another_default_device_is_the_same(tmp_path):
    brief = dataclasses.replace(TINY, updates=2)
    expected = train(brief, tmp_path / "here", progress=False).state_dict()
    with torch.device("meta"):  # where nothing can be read
        found = train(brief, tmp_path / "there", progress=False).state_dict()
    assert all(torch.equal(found[name], one) for name, one in expected.items())
