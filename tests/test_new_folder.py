"""Folders that appear whole: what fails leaves nothing, and what was killed is made again by the same command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sinkscope.errors import CallError, ModelError, TraceError
from sinkscope.locks import UNMOVED, new_folder


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
    with (
        pytest.raises(ModelError, match=f"^{folder}/weights cannot be written"),
        new_folder(folder, ModelError, "m") as place,
    ):
        (place / "config.json").write_text("x")
        raise ModelError(f"{place / 'weights'} cannot be written")
    with (
        pytest.raises(ModelError, match=f"^{folder} cannot be written .No space left"),
        new_folder(folder, ModelError, "m"),
    ):
        raise OSError(28, "No space left on device")
    assert not any(tmp_path.iterdir())


def test_a_folder_in_use_is_refused_and_stays(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(
        CallError, match=r"a new or empty folder for the model, found something there \(mine.txt\); choose another"
    ):
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


def killed_at(rename, folder, among=()):
    """Writes three files into a new folder in a process that ends at the n-th renaming."""
    process = os.fork()
    if not process:
        renamed, plain = [], Path.rename

        def counted(self, target):
            renamed.append(target)
            if len(renamed) == rename:
                os._exit(9)
            return plain(self, target)

        Path.rename = counted
        with new_folder(folder, TraceError, "a test", "z", among=among) as place:
            for name in ("a", "b", "z"):
                (place / name).write_text(name)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("among", [(), ("a", "b", "z")])
@pytest.mark.parametrize("rename", range(1, 5))
def test_what_was_killed_while_it_moved_is_made_anew(rename, among, tmp_path):
    if among:
        (tmp_path / "mine").write_text("kept")
    assert killed_at(rename, tmp_path, among) == 9
    assert not (tmp_path / "z").exists()
    with new_folder(tmp_path, TraceError, "a test", "z", among=among) as place:
        (place / "b").write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "b": "new",
        **({"mine": "kept"} if among else {}),
    }


@pytest.mark.parametrize("rename", range(1, 5))
def test_what_was_interrupted_while_it_moved_leaves_nothing(rename, tmp_path, monkeypatch):
    renamed, plain = [], Path.rename

    def interrupted(self, target):
        renamed.append(target)
        if len(renamed) == rename:
            raise KeyboardInterrupt
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path, TraceError, "a test", "z") as place:
        for name in ("a", "b", "z"):
            (place / name).write_text(name)
    assert not any(tmp_path.iterdir())


def test_what_was_moved_whole_stays(tmp_path):
    assert killed_at(5, tmp_path) == 0
    (tmp_path / UNMOVED).mkdir()
    (tmp_path / UNMOVED / ".moving").write_text('["a", "b", "z"]')  # killed before it was removed
    with pytest.raises(CallError, match="found something there"), new_folder(tmp_path, TraceError, "a test", "z"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "z"]


@pytest.mark.parametrize("listed", ["", "[3]", '["../mine"]', "{}", '["/etc/passwd"]'])
def test_a_list_that_is_none_removes_nothing(listed, tmp_path):
    (tmp_path / "mine").write_text("kept")
    folder = tmp_path / "out"
    (folder / UNMOVED).mkdir(parents=True)
    (folder / UNMOVED / ".moving").write_text(listed)
    with new_folder(folder, TraceError, "a test") as place:
        (place / "a").write_text("new")
    assert (tmp_path / "mine").read_text() == "kept" and [path.name for path in folder.iterdir()] == ["a"]
