"""Two processes that write into one folder: the second is refused by name, and what stands there is one run's."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hostile import trial

from sinkscope.errors import CallError, SinkscopeError, TraceError, TrainingError
from sinkscope.lab.checkpoint import train_checkpoint
from sinkscope.runs.folder import CLAIM, claimed_file, claimed_folder

HOLD = """
import sys, time
from pathlib import Path
from sinkscope.errors import SinkscopeError
from sinkscope.runs.folder import claimed_folder
with claimed_folder(Path(sys.argv[1]), SinkscopeError):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_writer_is_refused_by_name(tmp_path, holder):
    message = rf"out: another run is writing into it \(process {holder.pid}\)"
    with pytest.raises(SinkscopeError, match=message), claimed_folder(tmp_path / "out", SinkscopeError):
        raise AssertionError("two writers")
    assert os.listdir(tmp_path / "out") == [CLAIM]


def test_a_kill_releases_the_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with claimed_folder(tmp_path / "out", SinkscopeError):
        pass
    assert os.listdir(tmp_path / "out") == []


def test_what_was_made_and_is_empty_is_removed_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), claimed_folder(tmp_path / "a/b/c", SinkscopeError):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(ZeroDivisionError), claimed_folder(tmp_path / "mine", SinkscopeError):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["mine"]


def test_a_file_is_claimed_beside_it(tmp_path):
    with claimed_file(tmp_path / "x.npz", TraceError):
        message = r"x\.npz: another run is writing into it \(this process\)"
        with pytest.raises(TraceError, match=message), claimed_file(tmp_path / "x.npz", TraceError):
            raise AssertionError("two writers")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "words", [["explore", "--out", "a.html"], ["map", "--step", "1", "--layer", "0", "--head", "1", "--out", "a.npy"]]
)
def test_a_page_and_a_map_have_one_writer(whole, tmp_path, run, words):
    path = tmp_path / words.pop()
    with claimed_file(path, TraceError):
        status, _, err = run(words[0], whole / "trace", *words[1:], path)
    assert status == 1 and f"{path}: another run is writing into it" in err and not path.exists()
    assert run(words[0], whole / "trace", *words[1:], path)[0] == 0 and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "{model}", "--prompt", "Q: Tom\nA:", "--length", "64", "--steps", "64", "--block", "64"],
        ["train", "lab-sink-none", "--updates", "3"],
        ["export", "{trace}", "--to", "zarr"],
        ["fold", "{model}"],
        ["figures", "{trace}", "--only", "3"],
        ["bundle", "{trace}"],
        ["watch-training", "{textrun}", "--data", "{corpus}", "--canvases", "2"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.slow
def test_two_commands_at_once(whole, tmp_path, words):
    names = {name: whole / name for name in ("model", "trace", "textrun", "corpus")}
    words = [*(word.format(**names) for word in words), "--out", str(tmp_path / "out")]
    errors, runs = [tmp_path / "first", tmp_path / "second"], []
    for path in errors:
        path.touch()
        runs.append(os.fork())
        if not runs[-1]:
            trial.command(words, os.open(os.devnull, os.O_WRONLY), os.open(path, os.O_WRONLY))
    ends = [os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) for run in runs]
    told = [path.read_text() for path in errors]
    done = [status for status in ends if status == 0]
    refused = [err for err, status in zip(told, ends, strict=True) if status]
    assert done, refused
    for err in refused:
        assert "another run is writing" in err or "already" in err or "something there" in err, err
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((CLAIM, ".writing"))]


def test_training_into_a_folder_that_it_did_not_make(whole, tmp_path):
    from hostile.specimens import RECIPE

    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CallError, match=r"holds files of something else \(config\.json …\)"):
        train_checkpoint(RECIPE, tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    out = tmp_path / "out"
    train_checkpoint(RECIPE, out)
    train_checkpoint(RECIPE, out)  # it is finished
    foreign = (whole / "trace/steps-000000.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(foreign)
    with pytest.raises(
        TrainingError, match=r"model\.safetensors: expected the bytes whose sha256 its recipe\.json gives, found others"
    ):
        train_checkpoint(RECIPE, out)
    recipe = json.loads((out / "recipe.json").read_text())
    for name in ("command", "weights_sha256", "checksum"):
        del recipe[name]
    (out / "recipe.json").write_text(json.dumps(recipe))  # as of a run that is not finished
    with pytest.raises(TrainingError, match=r"found model\.safetensors of another"):
        train_checkpoint(RECIPE, out)


def test_the_lock_is_taken_before_anything_is_made(tmp_path, holder):
    before = time.time_ns()
    with pytest.raises(TrainingError, match="another run is writing into it"):
        from hostile.specimens import RECIPE

        train_checkpoint(RECIPE, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == [CLAIM] and os.stat(tmp_path / "out" / CLAIM).st_mtime_ns < before


def test_statistics_have_one_lone_writer(whole, tmp_path, run, monkeypatch):
    words = [
        "trace",
        whole / "model",
        "--prompts",
        whole / "prompts.jsonl",
        "--keep",
        "statistics",
        "--length",
        "4",
        "--out",
        tmp_path / "o",
    ]
    assert run(*words)[0] == 0
    with claimed_folder(tmp_path / "o", TraceError):
        for more in ([], ["--overwrite"]):
            status, _, err = run(*words, *more)
            assert status == 1 and f"{tmp_path}/o: another run is writing into it (this process)" in err
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        status, out, err = run(*words)  # torchrun's processes add to one folder together
        assert (status, out) == (
            0,
            "",
        ) and "process 1 of 2 (RANK, WORLD_SIZE) did its prompts; another one still has some" in err
    assert not (tmp_path / "o" / CLAIM).exists()
