"""What `--overwrite` replaces: it waits aside until there is something in its place, whatever kills come between."""

import json
import re

import pytest

import sinkscope
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import writing
from sinkscope.traces.writing import ASIDE, MOVING, claim_folder, room_in

SHORT = {"length": 4, "steps": 4, "block": 4}
FLAGS = ["--length", "4", "--steps", "4", "--block", "4"]


class Killed(BaseException):
    """A kill, as far as files can tell."""


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".claim"
    }


@pytest.fixture
def recorded(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "out"):
        sinkscope.generate(diffusion, [5, 6, 7], **SHORT)
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


def begun_in(folder):
    return lambda: (folder / "manifest.json").write_text(json.dumps({"format": 1, "complete": False, "steps": 0}))


def test_a_trace_survives_a_kill_and_a_second_run_that_records_nothing(recorded, monkeypatch):
    before = contents(recorded)
    for _ in range(2):
        killed_run(recorded, monkeypatch, begun_in(recorded))
        assert contents(recorded / ASIDE) == before
    stopped_run(recorded)
    assert contents(recorded) == before


def test_what_a_killed_run_has_recorded_is_the_trace_that_waits_next(recorded, monkeypatch):
    def begin():
        begun_in(recorded)()
        (recorded / "steps-000000.safetensors").write_bytes(b"of the second run")

    killed_run(recorded, monkeypatch, begin)
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
        assert len(contents(recorded)) == len(before)
        stopped_run(recorded)
        assert contents(recorded) == before
        assert not (recorded / MOVING).exists() and not (recorded / ASIDE).exists()


def test_numbered_traces_that_a_killed_run_put_aside_are_brought_back(diffusion, tmp_path, monkeypatch):
    with sinkscope.recording(diffusion, out=tmp_path / "out", numbered=True):
        sinkscope.generate(diffusion, [5, 6, 7], **SHORT)
    before = contents(tmp_path / "out")
    killed_run(tmp_path / "out", monkeypatch)
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {ASIDE}
    stopped_run(tmp_path / "out")
    assert contents(tmp_path / "out") == before
    killed_run(tmp_path / "out", monkeypatch)
    with sinkscope.recording(diffusion, out=tmp_path / "out", overwrite=True):
        sinkscope.generate(diffusion, [5, 6, 7], **SHORT)
    assert sinkscope.open_trace(tmp_path / "out").steps == 4 and not (tmp_path / "out" / ASIDE).exists()


def test_where_a_trace_waits_is_said(recorded, monkeypatch, run, diffusion):
    aside = recorded / ASIDE
    killed_run(recorded, monkeypatch)
    with pytest.raises(
        TraceError, match=rf"no trace at .*: .*the trace that was to be replaced is in {re.escape(str(aside))}"
    ):
        sinkscope.open_trace(recorded)
    whole = json.loads((aside / "manifest.json").read_text())
    from sinkscope.traces import TraceWriter

    TraceWriter(
        recorded, {key: value for key, value in whole.items() if key not in ("checksum", "parts", "steps", "complete")}
    )
    for command in (
        ["sinks"],
        ["tracks"],
        ["analyse"],
        ["figures", "--out", recorded.parent / "figures", "--only", "3"],
    ):
        status, _, err = run(command[0], recorded, *command[1:])
        assert status == 1
        assert (
            f"{recorded}: the trace holds no whole step yet" in err
            and f"the trace that was to be replaced is in {aside}" in err
        )


@pytest.mark.slow
def test_a_drift_recording_is_replaced(diffusion_folder, tmp_path, run):
    call = ["trace", diffusion_folder, "--problem", "0", *FLAGS, "--out", tmp_path / "out"]
    assert run(*call, "--keep", "drift")[0] == 0
    first = contents(tmp_path / "out")
    status, _, err = run(*call, "--keep", "drift")
    assert status == 2 and "already holds files of a recording of drift; choose another folder, or replace it" in err
    status, _, err = run(*call, "--keep", "drift", "--overwrite", "--hide", "top:1@layers=9")
    assert status == 2
    assert contents(tmp_path / "out") == first
    assert run(*call, "--keep", "drift", "--overwrite")[0] == 0
    assert contents(tmp_path / "out").keys() == first.keys()
    assert run(*call, "--overwrite")[0] == 0
    assert sinkscope.open_trace(tmp_path / "out").steps == 4 and not (tmp_path / "out" / "drift.json").exists()


def test_a_file_called_drift_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "drift.json").write_text('{"mine": 1}')
    with pytest.raises(CallError, match=r"already holds files \(drift\.json …\)"), room_in(tmp_path, True):
        pass


def test_a_drift_that_ends_in_its_second_prompt_does_not_take_the_trace_away(recorded, diffusion):
    before = contents(recorded)
    with (
        pytest.raises(KeyboardInterrupt),
        sinkscope.recording(diffusion, out=recorded, keep="drift", overwrite=True),
    ):
        sinkscope.generate(diffusion, [5, 6, 7], **SHORT)
        raise KeyboardInterrupt
    assert contents(recorded) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "left", ["000000/", "000000/manifest.json.7.writing", "drift.json.7.writing", "items/", "manifest.json.7.writing"]
)
def test_what_a_recording_leaves_that_was_killed_at_once_is_no_trace(left, overwrite, tmp_path):
    path = tmp_path / left
    (path if left.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not left.endswith("/"):
        path.write_text("{")
    claim_folder(tmp_path, overwrite)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["mine/", "000000/notes", "drift.json.writing"])
def test_what_no_recording_leaves_is_kept(left, tmp_path):
    path = tmp_path / left
    (path if left.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
    if not left.endswith("/"):
        path.write_text("{")
    with pytest.raises(CallError, match="already holds files"):
        claim_folder(tmp_path, True)
    assert path.exists()
