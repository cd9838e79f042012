"""Folders that appear whole: what fails leaves nothing, and what was killed is made again by the same command."""

import os
import subprocess
import sys

import pytest

from sinkscope.errors import CallError, ModelError
from sinkscope.locks import new_folder


def make(folder, names=("config.json", "weights")):
    with new_folder(folder, ModelError, "the model", "config.json") as place:
        for name in names:
            (place / name).write_text(name)


def test_what_is_written_is_there_at_the_end(tmp_path):
    make(tmp_path / "a" / "model")
    assert sorted(path.name for path in (tmp_path / "a" / "model").iterdir()) == ["config.json", "weights"]


def test_the_last_file_moves_last(tmp_path, monkeypatch):
    moved = []
    rename = type(tmp_path).rename
    monkeypatch.setattr(type(tmp_path), "rename", lambda path, to: moved.append(path.name) or rename(path, to))
    make(tmp_path / "model", ("config.json", "aaa", "zzz"))
    assert moved[-1] == "config.json"


def test_what_fails_leaves_nothing(tmp_path):
    folder = tmp_path / "model"
    with pytest.raises(ModelError, match=f"^{folder}/weights cannot be written"), new_folder(folder, ModelError, "m") as place:
        (place / "config.json").write_text("x")
        raise ModelError(f"{place / 'weights'} cannot be written")
    with pytest.raises(ModelError, match=f"^{folder} cannot be written .No space left"), new_folder(folder, ModelError, "m"):
        raise OSError(28, "No space left on device")
    assert not any(tmp_path.iterdir())


def test_a_folder_in_use_is_refused_and_stays(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(CallError, match=r"a new or empty folder for the model, found something there \(mine.txt\); choose another"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_was_killed_is_made_again(tmp_path):
    code = (
        "import os; from pathlib import Path; from sinkscope.errors import ModelError; from sinkscope.locks import new_folder\n"
        f"with new_folder(Path({str(tmp_path / 'model')!r}), ModelError, 'the model', 'config.json') as place:\n"
        "    (place / 'stale').write_text('half'); (place / 'config.json').write_text('half'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not (tmp_path / "model" / "config.json").exists()
    make(tmp_path / "model")
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "weights"]
    assert (tmp_path / "model" / "config.json").read_text() == "config.json"
