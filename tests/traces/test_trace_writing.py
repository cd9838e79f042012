import errno
import hashlib
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

import sinkscope
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import TraceWriter, claim_folder, open_trace, writing
from sinkscope.traces.writing import ASIDE, MOVING, room_in

LAYERS, HEADS = 2, 3
MANIFEST = {"layers": ["a", "b"], "heads": HEADS, "causal": False, "prompt": "Ċ"}


def make_step(number, length=7):
    return {
        "tokens": np.full(length, number, np.int32),
        "lengths": np.asarray(length, np.int32),
        "column_sums": np.full((LAYERS, HEADS, length), number / 64, np.float32),
    }


def parts_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_part_holds_at_most_16_steps_and_is_listed_with_its_checksum(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(37):
        writer.add(make_step(number))
        assert len(parts_in(tmp_path)) == (number + 1) // 16
    writer.close(complete=True, text="an answer")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [manifest[key] for key in ("complete", "text", "steps")] == [True, "an answer", 37]
    assert [(part["first_step"], part["steps"]) for part in manifest["parts"]] == [(0, 16), (16, 16), (32, 5)]
    assert [part["file"] for part in manifest["parts"]] == parts_in(tmp_path)
    for part in manifest["parts"]:
        assert part["sha256"] == hashlib.sha256((tmp_path / part["file"]).read_bytes()).hexdigest()
    assert open_trace(tmp_path).tokens[:, 0].tolist() == list(range(37))


def test_steps_have_the_tensors_of_the_first(tmp_path):
    writer, step = TraceWriter(tmp_path, MANIFEST), make_step(3)
    writer.add(step)
    writer.add({name: array for name, array in step.items() if name != "column_sums"})
    with pytest.raises(TraceError, match="expected the tensors of the first step"):
        writer.flush()


def test_a_full_disk_leaves_nothing_half_written_under_a_parts_name(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(20):
        writer.add(make_step(number))
    with monkeypatch.context() as patch, pytest.raises(TraceError) as caught:
        patch.setattr(os, "fsync", full)
        writer.flush()
    assert f"{tmp_path / 'steps-000001.safetensors'} cannot be written (No space left on device)" in str(caught.value)
    assert parts_in(tmp_path) == ["steps-000000.safetensors"]
    assert (open_trace(tmp_path).steps, open_trace(tmp_path).complete) == (16, False)


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"format": 1}')


RECORDED = (
    "manifest.json steps-000000.safetensors steps-000001.safetensors.47.writing map-000003-001-002.safetensors "
    "drift.json .lock items/000004.safetensors 000000/manifest.json 000012/manifest.json.12.writing"
).split()


def test_overwriting_deletes_what_was_recorded_and_follows_no_links(tmp_path):
    fill(tmp_path / "elsewhere", ["manifest.json"])
    fill(tmp_path / "t", RECORDED)
    (tmp_path / "t" / "000099").symlink_to(tmp_path / "elsewhere")
    claim_folder(tmp_path / "t", overwrite=True)
    assert not any((tmp_path / "t").iterdir()) and (tmp_path / "elsewhere" / "manifest.json").exists()
    claim_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()


@pytest.mark.parametrize("mine", ["manifest.json.bak", "000000/thesis.tex"])
def test_overwriting_deletes_nothing_where_anything_else_lies(tmp_path, mine):
    fill(tmp_path, [*RECORDED, mine])
    with pytest.raises(CallError, match=r"already holds files \(.* …\); choose another folder"):
        claim_folder(tmp_path, overwrite=True)
    assert all((tmp_path / name).exists() for name in [*RECORDED, mine])


# What `--overwrite` replaces waits aside until something is recorded in its place, whatever kills come between.


class Killed(BaseException):
    """A kill, as far as files can tell."""


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".claim")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def recorded(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "out", numbered=True):
        sinkscope.generate(diffusion, [5, 6, 7], length=4, steps=4, block=4)
    return tmp_path / "out"


def killed_run(folder, monkeypatch, begin=lambda: None):
    """Put a trace aside and begin another one, without what a process does at its end."""
    with monkeypatch.context() as gone:
        gone.setattr(writing, "_bring_back", lambda folder: None)
        gone.setattr(writing, "_delete", lambda folder, keep="": None)
        with pytest.raises(Killed), room_in(folder, True):
            begin()
            raise Killed


def stopped_run(folder):
    with pytest.raises(KeyboardInterrupt), room_in(folder, True):
        raise KeyboardInterrupt


def test_a_trace_survives_kills_before_anything_is_recorded_in_its_place(recorded, monkeypatch):
    before = contents(recorded)
    for _ in range(2):
        killed_run(recorded, monkeypatch, lambda: fill(recorded, ["manifest.json"]))
        assert contents(recorded / ASIDE) == before
        (recorded / "manifest.json").unlink()
        TraceWriter(recorded, MANIFEST)
        with pytest.raises(TraceError, match="the trace that was to be replaced is in"):
            sinkscope.find_sinks(recorded)
    stopped_run(recorded)
    assert contents(recorded) == before


def test_the_steps_of_a_killed_run_are_the_trace_that_waits_next(recorded, monkeypatch):
    killed_run(recorded, monkeypatch, lambda: fill(recorded, ["manifest.json", "steps-000000.safetensors"]))
    second = {name: content for name, content in contents(recorded).items() if not name.startswith(ASIDE)}
    stopped_run(recorded)
    assert contents(recorded) == second


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_kill_while_a_trace_is_moved_loses_none_of_it(recorded, monkeypatch, way):
    before = contents(recorded)
    for count in range(1 + len(before) + 1):
        rename, left = writing.Path.rename, [count]

        def killing(path, target, rename=rename, left=left):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return rename(path, target)

        if way == "back":
            killed_run(recorded, monkeypatch)
        with monkeypatch.context() as gone:
            gone.setattr(writing.Path, "rename", killing)
            with pytest.raises((Killed, KeyboardInterrupt)), room_in(recorded, True):
                raise KeyboardInterrupt
        stopped_run(recorded)
        assert contents(recorded) == before
        assert not (recorded / MOVING).exists() and not (recorded / ASIDE).exists()
