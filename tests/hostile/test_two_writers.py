"""Two processes that write into one folder: the second is refused by name, and the folder holds one run's files."""

import json
import os

import pytest
from hostile import specimens, trial

from sinkscope.errors import CallError, TraceError, TrainingError
from sinkscope.lab.training import train_checkpoint
from sinkscope.runs.folder import CLAIM, claimed_file, claimed_folder

WORDS = {
    "trace": ["{0}/model", "--prompt", "Q: Tom\nA:", "--length", "64", "--steps", "64", "--block", "64"],
    "train": ["lab-sink-none", "--updates", "3"],
    "export": ["{0}/trace", "--to", "zarr"],
    "fold": ["{0}/model"],
    "figures": ["{0}/trace", "--only", "3"],
    "bundle": ["{0}/trace"],
    "watch-training": ["{0}/textrun", "--data", "{0}/corpus", "--canvases", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_two_commands_at_once(whole, tmp_path, name):
    words = [name, *(word.format(whole) for word in WORDS[name]), "--out", str(tmp_path / "out")]
    errors, runs = [tmp_path / "first", tmp_path / "second"], []
    for path in errors:
        path.touch()
        runs.append(os.fork())
        if not runs[-1]:
            trial.command(words, os.open(os.devnull, os.O_WRONLY), os.open(path, os.O_WRONLY))
    ends = [os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) for run in runs]
    refused = [path.read_text() for path, status in zip(errors, ends, strict=True) if status]
    assert 0 in ends, refused
    for err in refused:
        assert "another run is writing" in err or "already" in err or "something there" in err, err
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((CLAIM, ".writing"))]


def test_a_page_has_one_writer(whole, tmp_path, run):
    path = tmp_path / "a.html"
    with claimed_file(path, TraceError):
        status, _, err = run("explore", whole / "trace", "--out", path)
    assert status == 1 and f"{path}: another run is writing into it" in err and not path.exists()


def test_training_into_a_folder_that_it_did_not_make(whole, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CallError, match=r"holds files of something else \(config\.json …\)"):
        train_checkpoint(specimens.RECIPE, tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    out = tmp_path / "out"
    with (
        claimed_folder(out, TraceError),
        pytest.raises(TrainingError, match=r"another run is writing into it \(this process\)"),
    ):
        train_checkpoint(specimens.RECIPE, out)
    train_checkpoint(specimens.RECIPE, out)
    (out / "model.safetensors").write_bytes((whole / "trace/steps-000000.safetensors").read_bytes())
    with pytest.raises(TrainingError, match=r"expected the bytes whose sha256 its recipe\.json gives, found others"):
        train_checkpoint(specimens.RECIPE, out)


def test_statistics_have_one_lone_writer(whole, tmp_path, run, monkeypatch):
    words = ["trace", whole / "model", "--prompts", whole / "prompts.jsonl", "--keep", "statistics", "--length", "4"]
    words += ["--out", tmp_path / "o"]
    assert run(*words)[0] == 0
    with claimed_folder(tmp_path / "o", TraceError):
        for more in ([], ["--overwrite"]):
            status, _, err = run(*words, *more)
            assert status == 1 and f"{tmp_path}/o: another run is writing into it (this process)" in err
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        status, out, err = run(*words)  # torchrun's processes add to one folder together
        assert (status, out) == (0, "") and "process 1 of 2 did its prompts" in err
    assert not (tmp_path / "o" / CLAIM).exists()


ROLES = "--problems 10 --canvases 1 --length 4 --steps 4 --block 4"
SHORT = "--limit 1 --shots 0 --length 4 --steps 4 --block 4"
FOREIGN = [
    (f"evaluate {{0}}/model {SHORT}", "found", "expected an evaluation, found roles"),
    (f"evaluate {{0}}/model {SHORT}", "mine", "expected an evaluation, found something else"),
    (
        f"roles {{0}}/model --dtype bfloat16 --shots 1 {ROLES}",
        "found",
        "another run: other prompts; choose another folder",
    ),
    ("explore {0}/trace", "trace", "expected a new or empty folder for the explorer"),
    ("watch-training {0}/watch", "mine", "mine holds files of something else"),
    ("train lab-sink-token --sink-token gate", "run", "(sink_token 'token' → 'gate')"),
]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("words", "name", "says"), FOREIGN)
def test_a_folder_of_something_else_is_left_as_it_was(place, words, name, says):
    (place / "mine").mkdir()
    (place / "mine/run.json").write_text(json.dumps({"scripts": {}}))
    before = contents(place)
    outcome = trial.run(*words.format(place).split(), "--out", place / name)
    assert outcome.refused and says in outcome.err, outcome
    assert contents(place) == before
