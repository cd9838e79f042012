import os
import subprocess
import sys

import pytest

from sinkscope.errors import CallError, ModelError, TraceError
from sinkscope.runs import folder

HOLD = """
import sys
from pathlib import Path
from sinkscope.errors import TraceError
from sinkscope.runs.folder import claimed_folder
with claimed_folder(Path(sys.argv[1]), TraceError):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_writer_a_folder(tmp_path):
    place = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(TraceError, match=f"another run is writing into it .process {other.pid}"),
            folder.claimed_folder(place, TraceError),
        ):
            pass
        other.kill()
    with folder.claimed_folder(place, TraceError):  # a killed holder holds nothing
        assert (place / folder.CLAIM).read_text().strip() == str(os.getpid())
    assert list(place.iterdir()) == []


def test_folders_that_stay_empty_are_removed(tmp_path):
    with pytest.raises(KeyboardInterrupt), folder.claimed_folder(tmp_path / "a" / "b", TraceError):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(CallError, match="a file on the way"), folder.claimed_folder(tmp_path / "file", TraceError):
        pass


def test_a_new_folder_is_filled_at_the_end(tmp_path):
    place = tmp_path / "model"
    with folder.new_folder(place, ModelError, "the model", "config.json") as within:
        (within / "config.json").write_text("{}")
        (within / "weights").write_text("w")
        assert not (place / "weights").exists()
    assert folder.names_in(place) == ["config.json", "weights"]
    with (
        pytest.raises(CallError, match=r"expected a new or empty folder for the model, found something there"),
        folder.new_folder(place, ModelError, "the model"),
    ):
        pass
    with folder.new_folder(place, ModelError, "more", among=["other"]) as within:
        (within / "other").touch()
    assert folder.names_in(place) == ["config.json", "other", "weights"]


def test_a_new_folder_stays_empty_where_its_body_raises(tmp_path):
    place = tmp_path / "model"
    with pytest.raises(ModelError, match="weights: no"), folder.new_folder(place, ModelError, "it") as within:
        (within / "weights").touch()
        raise ModelError(f"{within / 'weights'}: no")
    assert not place.exists()


def test_files_are_replaced_together(tmp_path):
    (tmp_path / "one").write_text("old")
    with pytest.raises(KeyboardInterrupt), folder.replaced_files(tmp_path) as within:
        (within / "one").write_text("new")
        raise KeyboardInterrupt
    assert (tmp_path / "one").read_text() == "old" and folder.names_in(tmp_path) == ["one"]
    with folder.replaced_files(tmp_path) as within:
        (within / "one").write_text("new")
        (within / "two").write_text("new")
    assert (tmp_path / "one").read_text() == "new" and folder.names_in(tmp_path) == ["one", "two"]
