"""Files and folders that this user may not read or write: each is told as such, and nothing that is closed counts as empty."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hostile import trial

SHORT = ["--limit", "1", "--shots", "0", "--length", "4", "--steps", "4", "--block", "4"]
EVALUATE = ["evaluate", "model", "--tasks", "lab-arith", *SHORT]
COMPARE = ["compare-caches", "model", "--policies", "none@threshold=0.9", *SHORT]
ROLES = ["roles", "model", "--problems", "10", "--canvases", "1", "--length", "4", "--steps", "4", "--block", "4"]
CLOSED = {
    "trace": ["sinks", "trace"],
    "trace/manifest.json": ["sinks", "trace"],
    "trace/steps-000000.safetensors": ["sinks", "trace"],
    "trace/map-000001-000-001.safetensors": ["map", "trace", "--step", "1", "--layer", "0", "--head", "1"],
    "statistics/statistics.safetensors": ["sinks", "statistics"],
    "statistics/manifest.json": ["sinks", "statistics"],
    "statistics": ["sinks", "statistics"],
    "model": ["check", "model"],
    "model/config.json": ["check", "model"],
    "model/model.safetensors": ["check", "model"],
    "model/tokenizer.json": ["check", "model"],
    "model/tokenizer_config.json": ["check", "model"],
    "textrun/snapshots": ["watch-training", "textrun", "--data", "corpus", "--canvases", "2", "--out", "out"],
    "textrun/recipe.json": ["watch-training", "textrun", "--data", "corpus", "--canvases", "2", "--out", "out"],
    "watch": ["watch-training", "watch", "--out", "out"],
    "watch/update-000001.safetensors": ["watch-training", "watch", "--out", "out"],
    "run/training-state.safetensors": ["train", "lab-sink-token", "--out", "run"],
    "run/training.jsonl": ["train", "lab-sink-token", "--out", "run"],
    "corpus/train.bin": ["train", "lab-text-diffusion", "--data", "corpus", "--out", "out"],
    "corpus": ["train", "lab-text-diffusion", "--data", "corpus", "--out", "out"],
    "results": ["table", "results"],
    "results/results.json": ["table", "results"],
    "results/run.json": [*EVALUATE, "--out", "results"],
    "results/lab-arith": [*EVALUATE, "--out", "results"],
    "caches/lab-arith": [*COMPARE, "--out", "caches"],
    "found/judge": [*ROLES, "--out", "found"],
    "roles.json": ["tracks", "trace", "--roles", "roles.json"],
    "bundle": ["bundle", "bundle", "--check"],
    "bundle/page.html": ["bundle", "bundle", "--check"],
    "prompts.jsonl": ["trace", "model", "--prompts", "prompts.jsonl", "--length", "4", "--out", "out"],
    "lit": ["convert", "lit/lit.safetensors", "--tokenizer", "lit", "--heads", "2", "--out", "out"],
    "lit/lit.safetensors": ["convert", "lit/lit.safetensors", "--tokenizer", "lit", "--heads", "2", "--out", "out"],
}
WRITERS = {
    "trace": ["trace", "model", "--prompt", "Q", "--length", "4", "--out", "out"],
    "statistics": [
        "trace",
        "model",
        "--prompts",
        "prompts.jsonl",
        "--keep",
        "statistics",
        "--length",
        "4",
        "--out",
        "out",
    ],
    "evaluate": [*EVALUATE, "--out", "out"],
    "compare-caches": [*COMPARE, "--out", "out"],
    "roles": [*ROLES, "--out", "out"],
    "train": ["train", "lab-sink-token", "--out", "out"],
    "watch-training": ["watch-training", "textrun", "--data", "corpus", "--canvases", "2", "--out", "out"],
    "zarr": ["export", "trace", "--to", "zarr", "--out", "out"],
    "figures": ["figures", "trace", "--only", "3", "--out", "out"],
    "fold": ["fold", "model", "--out", "out"],
    "convert": ["convert", "lit/lit.safetensors", "--tokenizer", "lit", "--heads", "2", "--out", "out"],
    "bundle": ["bundle", "trace", "--out", "out"],
    "explore": ["explore", "trace", "--out", "out"],
    "demo": ["demo", "--problems", "1", "--length", "4", "--block", "4", "--out", "out"],
}


@pytest.fixture
def owned(whole):
    """A copy of the specimens, whose permissions a test may change."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_closed_is_told_as_closed(owned, name):
    (owned / name).chmod(0)
    outcome = trial.run(*CLOSED[name], cwd=owned, bound=True)
    assert trial.faults(outcome, out=owned / "out") == [] and "Permission denied" in outcome.err, outcome
    assert name in outcome.err and not re.search("damage|fetch|correct|none there", outcome.err), outcome


def test_a_folder_whose_names_may_not_be_read_is_not_empty(owned):
    (owned / "trace").chmod(0o111)
    outcome = trial.run("sinks", "trace", cwd=owned, bound=True)
    assert trial.faults(outcome) == [] and "trace cannot be read (Permission denied)" in outcome.err, outcome


@pytest.mark.parametrize("name", WRITERS)
def test_new_folders_that_nobody_may_write_into(owned, name):
    before = {*owned.iterdir()}
    outcome = trial.run(*WRITERS[name], cwd=owned, bound=True, umask=0o777)
    assert trial.faults(outcome) == [], outcome
    assert {*owned.iterdir()} == before, outcome
