import errno
import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import FORMAT, TraceWriter, claim_folder, move_trace, open_trace, writing

LAYERS, HEADS = 2, 3
MANIFEST = {"layers": ["a", "b"], "heads": HEADS, "causal": False, "prompt": "Ċ"}


def make_step(number, length=7):
    tokens = np.full(length, number, np.int32)
    return {
        "tokens": tokens,
        "lengths": np.asarray(length, np.int32),
        "column_sums": np.full((LAYERS, HEADS, length), number / 64, np.float32),
    }


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def parts_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")


@pytest.fixture(scope="module", autouse=True)
def still_clock():
    """Parts are closed by their number of steps alone, however slow the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: 0.0))
        yield


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


# Parts


def test_the_manifest_is_there_first_and_says_incomplete(tmp_path):
    TraceWriter(tmp_path, MANIFEST)
    assert parts_in(tmp_path) == []
    manifest = manifest_of(tmp_path)
    assert manifest["complete"] is False
    assert (manifest["format"], manifest["parts"], manifest["steps"]) == (FORMAT, [], 0)
    assert manifest["prompt"] == "Ċ"
    assert manifest["axes"] == {name: list(axes) for name, axes in TRACE_AXES.items()}
    assert manifest["units"].keys() == manifest["axes"].keys()
    assert manifest["units"] == TRACE_UNITS


def test_a_part_holds_at_most_16_steps(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(37):
        writer.add(make_step(number))
        assert len(parts_in(tmp_path)) == (number + 1) // 16
    writer.close(complete=True)
    assert [(part["first_step"], part["steps"]) for part in manifest_of(tmp_path)["parts"]] == [
        (0, 16),
        (16, 16),
        (32, 5),
    ]
    assert parts_in(tmp_path) == [f"steps-00000{number}.safetensors" for number in range(3)]
    assert open_trace(tmp_path).tokens[:, 0].tolist() == list(range(37))


def test_a_part_is_closed_after_2_seconds(tmp_path, clock):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(4):
        writer.add(make_step(number))
    assert parts_in(tmp_path) == []
    clock.now += 1.9
    writer.add(make_step(4))
    assert parts_in(tmp_path) == []
    clock.now += 0.1
    writer.add(make_step(5))
    assert parts_in(tmp_path) == ["steps-000000.safetensors"]
    writer.add(make_step(6))
    assert len(parts_in(tmp_path)) == 1  # the two seconds begin anew
    writer.close(complete=True)
    assert [part["steps"] for part in manifest_of(tmp_path)["parts"]] == [6, 1]


def test_a_part_is_closed_when_it_holds_enough_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "BYTES_PER_PART", 1000)
    size = sum(array.nbytes for array in make_step(0).values())  # 200
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(12):
        assert writer.held == number % 5 * size
        writer.add(make_step(number))
        assert len(parts_in(tmp_path)) == (number + 1) // 5
    writer.close(complete=True)
    assert [part["steps"] for part in manifest_of(tmp_path)["parts"]] == [5, 5, 2] and writer.held == 0
    assert open_trace(tmp_path).tokens[:, 0].tolist() == list(range(12))


def test_the_bounds_of_a_part_are_stated():
    assert (writing.STEPS_PER_PART, writing.SECONDS_PER_PART, writing.BYTES_PER_PART) == (16, 2.0, 64 * 2**20)


def test_a_step_that_took_2_seconds_is_on_disk_at_once(tmp_path, clock):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(3):
        clock.now += 10
        writer.add(make_step(number))
        assert open_trace(tmp_path).steps == number + 1


def test_closing_lists_every_part_with_its_checksum(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(20):
        writer.add(make_step(number))
    writer.close(complete=True, text="an answer")
    manifest = manifest_of(tmp_path)
    assert manifest["complete"] is True
    assert manifest["text"] == "an answer"
    assert manifest["steps"] == 20
    assert [part["file"] for part in manifest["parts"]] == parts_in(tmp_path)
    for part in manifest["parts"]:
        assert part["sha256"] == hashlib.sha256((tmp_path / part["file"]).read_bytes()).hexdigest()


def test_a_generation_given_up_keeps_its_steps_and_stays_incomplete(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.add(make_step(0))
    writer.close(complete=False)
    assert manifest_of(tmp_path)["complete"] is False
    assert open_trace(tmp_path).steps == 1


def test_a_trace_without_steps_can_be_closed(tmp_path):
    TraceWriter(tmp_path, MANIFEST).close(complete=True)
    assert parts_in(tmp_path) == []
    assert open_trace(tmp_path).steps == 0


# A disk that fails


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_half_written_under_a_parts_name(tmp_path, monkeypatch, call):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(20):
        writer.add(make_step(number))
    with monkeypatch.context() as patch, pytest.raises(TraceError) as caught:
        patch.setattr(os, call, full)
        writer.flush()
    assert f"{tmp_path / 'steps-000001.safetensors'} cannot be written (No space left on device)" in str(caught.value)
    assert parts_in(tmp_path) == ["steps-000000.safetensors"]
    trace = open_trace(tmp_path)
    assert (trace.steps, trace.complete) == (16, False)


def test_a_disk_that_is_full_from_the_start_is_one_clear_message(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        TraceError,
        match=r"manifest\.json cannot be written \(No space left on device\); make room or choose another folder",
    ):
        TraceWriter(tmp_path, MANIFEST)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_the_end_leaves_the_first_manifest(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(16):
        writer.add(make_step(number))
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TraceError, match=r"manifest\.json cannot be written"):
        writer.close(complete=True)
    trace = open_trace(tmp_path)
    assert (trace.steps, trace.complete) == (16, False)
    assert parts_in(tmp_path) == ["steps-000000.safetensors"]


def test_a_folder_without_write_permission_is_one_clear_message(tmp_path, monkeypatch):
    def refuse(self, *_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may write anywhere, so the refusal is staged
    with pytest.raises(TraceError, match=r"manifest\.json cannot be written \(Permission denied\)"):
        TraceWriter(tmp_path, MANIFEST)


# The folder


def test_a_new_or_empty_folder_is_claimed(tmp_path):
    claim_folder(tmp_path / "some" / "where")
    assert (tmp_path / "some" / "where").is_dir()
    claim_folder(tmp_path / "some" / "where")


@pytest.mark.parametrize(
    ("inside", "what"),
    [
        ("manifest.json", "a trace; choose another folder, or replace it: overwrite=True, --overwrite"),
        ("000000/manifest.json", "a trace; choose another folder, or replace it: overwrite=True, --overwrite"),
        ("items/manifest.json", "statistics; choose another folder, or replace it: overwrite=True, --overwrite"),
        ("notes.txt", r"files \(notes\.txt …\); choose another folder or delete this one"),
    ],
)
def test_an_occupied_folder_is_refused(tmp_path, inside, what):
    (tmp_path / inside).parent.mkdir(exist_ok=True)
    (tmp_path / inside).write_text("{}")
    with pytest.raises(CallError, match=f"already holds {what}$"):
        claim_folder(tmp_path)
    assert (tmp_path / inside).read_text() == "{}"


RECORDED = (
    "manifest.json steps-000000.safetensors steps-000001.safetensors.4711.writing map-000003-001-002.safetensors statistics.safetensors "
    ".lock items/000004.safetensors 000000/manifest.json 000000/steps-000000.safetensors 000012/manifest.json.12.writing"
).split()


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


def test_overwriting_deletes_what_was_recorded(tmp_path):
    fill(tmp_path / "t", RECORDED)
    claim_folder(tmp_path / "t", overwrite=True)
    assert (tmp_path / "t").is_dir() and not list((tmp_path / "t").iterdir())
    claim_folder(tmp_path / "new", overwrite=True)
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    "mine",
    [
        "notes.txt",
        "manifest.json.bak",
        "000000/thesis.tex",
        "items/plan.md",
        "figures/manifest.json",
    ],
)
def test_overwriting_deletes_nothing_where_anything_else_lies(tmp_path, mine):
    fill(tmp_path, [*RECORDED, mine])
    with pytest.raises(
        CallError,
        match=r"already holds files \(.* …\); choose another folder",
    ):
        claim_folder(tmp_path, overwrite=True)
    assert all((tmp_path / name).exists() for name in [*RECORDED, mine])


def test_overwriting_follows_no_links(tmp_path):
    fill(tmp_path / "elsewhere", ["manifest.json"])
    fill(tmp_path / "t", ["manifest.json"])
    (tmp_path / "t" / "000000").symlink_to(tmp_path / "elsewhere")
    claim_folder(tmp_path / "t", overwrite=True)
    assert not any((tmp_path / "t").iterdir())
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


def test_overwriting_needs_a_trace(tmp_path):
    fill(tmp_path, ["steps-000000.safetensors"])
    with pytest.raises(CallError, match=r"already holds files \(steps-000000\.safetensors …\)"):
        claim_folder(tmp_path, overwrite=True)


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(CallError, match="expected a folder, found a file on the way"):
        claim_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_cannot_be_made_is_one_clear_message(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(TraceError, match=r"trace cannot be made \(Permission denied\); choose another folder"):
        claim_folder(tmp_path / "trace")


def test_a_trace_moves_into_a_numbered_folder_whole(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    for number in range(18):
        writer.add(make_step(number))
    writer.close(complete=True)
    move_trace(tmp_path, tmp_path / "000000")
    assert [path.name for path in tmp_path.iterdir()] == ["000000"]
    trace = open_trace(tmp_path / "000000")
    assert (trace.steps, trace.complete) == (18, True)


def test_a_trace_is_moved_to_no_place_that_is_taken_and_out_of_no_bundle(tmp_path):
    source, there = tmp_path / "trace", tmp_path / "there"
    source.mkdir()
    there.mkdir()
    TraceWriter(source, MANIFEST).close(complete=True)
    with pytest.raises(FileExistsError):
        move_trace(source, there)
    (source / "bundle.json").write_text("{}")
    with pytest.raises(CallError, match="is a bundle, of which a trace is a part; move the whole folder"):
        move_trace(source, source / "in")
    assert not (source / "in").exists()
