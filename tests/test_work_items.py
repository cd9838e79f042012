"""What both resumable folders share: shares of processes, files written whole, locks, and what makes two runs different."""

import errno
import os
import subprocess
import sys

import pytest
from full_disk import room_for

from sinkscope.errors import CallError, EvaluationError, TraceError
from sinkscope.evaluation.results_folder import locked
from sinkscope.locks import claimed_folder
from sinkscope.work_items import (
    Share,
    differences,
    exclusive,
    item_path,
    lock,
    read_object,
    share_of_process,
    write_whole,
)


def test_the_share_is_torchruns(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert share_of_process() == Share(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert share_of_process() == Share(3, 4)
    for rank in ("4", "x"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(
            CallError, match=f"expected RANK below WORLD_SIZE in the environment, .* found RANK={rank}, WORLD_SIZE=4"
        ):
            share_of_process()


def test_what_is_not_divided_is_refused_under_torchrun(monkeypatch, tmp_path, run):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    out = ("--out", tmp_path / "out")
    for words, what in {
        ("train", "lab-nulls-diffusion-0", *out): "train",
        ("watch-training", "nowhere", *out): "watch-training",
        ("roles", "lab-diffusion", *out): "roles",
        ("trace", "lab-diffusion", *out): "trace without --keep statistics",
        ("trace", "lab-diffusion", "--keep", "drift", *out): "trace without --keep statistics",
    }.items():
        status, _, err = run(*words)
        expected = (
            f"{what}: expected one process, since its work is not divided, found 4 of torchrun; leave torchrun out"
        )
        assert status == 2 and expected in err
    assert not (tmp_path / "out").exists()


def test_items_stand_in_the_order_of_their_numbers(tmp_path):
    paths = [item_path(tmp_path, index, ".json") for index in (0, 9, 10, 123456)]
    assert paths == sorted(paths) and paths[-1].name == "123456.json"


@pytest.mark.parametrize("content", [b"abc", [b"a", memoryview(b"bc")]])
def test_a_file_is_written_whole(tmp_path, content):
    write_whole(tmp_path / "a", content, TraceError, "")
    assert (tmp_path / "a").read_bytes() == b"abc" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("failure", [EvaluationError, TraceError])
def test_what_could_not_be_written_leaves_the_file_as_it_was(tmp_path, monkeypatch, failure):
    write_whole(path := tmp_path / "a", b"old", failure, "")

    with room_for(0, monkeypatch), pytest.raises(failure) as error:
        write_whole(path, b"new", failure, "make room")
    assert str(error.value) == f"{path} cannot be written (No space left on device); make room"
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff"])
def test_what_is_no_object_is_none(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert read_object(tmp_path / "a") is read_object(tmp_path / "b") is None


def test_runs_differ_in_the_values_that_differ():
    theirs = {"model": {"hash": "a", "dtype": "float32"}, "hide": "none", "old": 1}
    mine = {"model": {"hash": "a", "dtype": "bfloat16"}, "hide": "top:1", "new": {"deep": 2}}
    found = [
        ("model.dtype", "float32", "bfloat16"),
        ("hide", "none", "top:1"),
        ("old", 1, None),
        ("new", None, {"deep": 2}),
    ]
    assert list(differences(theirs, mine)) == found
    assert list(differences(mine, mine)) == []


def test_a_lock_keeps_others_out_until_its_holder_dies(tmp_path):
    import fcntl

    code = f"""
import time
from pathlib import Path
from sinkscope.errors import TraceError
from sinkscope.work_items import exclusive
with exclusive(Path({str(tmp_path / "lock")!r}), TraceError):
    print("locked", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with (tmp_path / "lock").open("a+") as file, pytest.raises(BlockingIOError):
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, TraceError)
        other.kill()
        with exclusive(tmp_path / "lock", TraceError):
            pass


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path, victim: path.symlink_to(victim), "a link"),
        (lambda path, _: os.mkfifo(path), "a named pipe"),
        (lambda path, _: path.mkdir(), "a folder"),
    ],
)
def test_a_lock_is_a_plain_file(tmp_path, make, found):
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_text("precious")
    folder.mkdir()
    make(folder / "lock", victim)
    expected = f"lock: expected a file that can be locked, found {found}; remove it, or choose another folder"
    with pytest.raises(EvaluationError, match=expected), exclusive(folder / "lock", EvaluationError):
        pass
    with pytest.raises(EvaluationError, match=expected), locked(folder):
        pass
    make(folder / ".claim", victim)
    with (
        pytest.raises(TraceError, match=f".claim: expected the lock of .*, found {found}"),
        claimed_folder(folder, TraceError),
    ):
        pass
    assert victim.read_text() == "precious"


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    import fcntl

    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    message = "lock: expected a file system that locks files, found No locks available; choose a folder on a local disk"
    with pytest.raises(TraceError, match=message), exclusive(tmp_path / "lock", TraceError):
        pass
