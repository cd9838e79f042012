import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from full_disk import room_for

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import results_folder
from sinkscope.evaluation.results_folder import ResultItems, claim, find_items, is_working, locked, write_json
from sinkscope.runs.share import Share

RUN = {"format": 1, "model": {"name": "a", "weight_hash": "f0"}, "sampler": {"length": 8, "seed": 0}, "limit": None}


def items_of(folder, hide, run):
    return ResultItems(folder, "lab-arith", hide, run)


@pytest.fixture
def items(tmp_path):
    return items_of(tmp_path, "none", "hash")


def test_an_item_comes_back_as_it_went_in(items, tmp_path):
    committed = items.commit(17, {"text": "ä", "tokens": (1, 2), "correct": True})
    assert (
        items.read(17) == committed == {"run": items.run, "index": 17, "text": "ä", "tokens": [1, 2], "correct": True}
    )
    assert items.read(16) is None
    assert find_items(tmp_path) == [tmp_path / "lab-arith" / "none" / "000017.json"]


DAMAGE = {
    "cut short": lambda content: content[:-20],
    "empty": lambda content: b"",
    "no text": lambda content: b"\xff\xfe",
    "no object": lambda content: b"[1]",
    "changed": lambda content: content.replace(b"false", b"true"),
    "no checksum": lambda content: content.replace(b"checksum", b"sum"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_item_is_set_aside_and_reported(items, caplog, damage):
    items.commit(3, {"correct": False})
    path = items.folder / "000003.json"
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert items.read(3) is None
    assert caplog.messages == [
        f"{path} is damaged or of another run; it is kept as 000003.json.damaged and the problem is done again"
    ]
    assert items.read(3) is None
    assert [file.name for file in items.folder.iterdir()] == ["000003.json.damaged"]


def test_an_item_in_another_items_place_or_of_another_run_does_not_count(items, tmp_path):
    items.commit(3, {"correct": True})
    os.rename(items.folder / "000003.json", items.folder / "000004.json")
    assert items.read(4) is None
    items.commit(5, {"correct": True})
    assert items_of(tmp_path, "none", "other").read(5) is None


def test_rules_get_folders_of_their_own(tmp_path):
    one, other = items_of(tmp_path, "top:1@current", "h"), items_of(tmp_path, "top:1", "h")
    assert (one.folder.name, other.folder.name) == ("top-1-current", "top-1")
    assert one.run != other.run


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    with room_for(0, monkeypatch), pytest.raises(EvaluationError) as error:
        write_json(path, {"a": 2})
    kept = "what was done before is kept: make room and run the same command again"
    assert str(error.value) == f"{path} cannot be written (No space left on device); {kept}"
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_run_goes_on_under_another_name_of_the_model(tmp_path):
    first = claim(tmp_path / "run.json", RUN)
    assert claim(tmp_path / "run.json", RUN) == first
    assert claim(tmp_path / "run.json", {**RUN, "model": {"name": "b", "weight_hash": "f0"}}) == first


def test_another_run_is_refused_by_what_differs(tmp_path):
    claim(tmp_path / "run.json", RUN)
    other = {**RUN, "model": {"name": "b", "weight_hash": "f1"}, "sampler": {"length": 16}, "limit": 5}
    with pytest.raises(CallError) as error:
        claim(tmp_path / "run.json", other)
    changes = "other weights; sampler.length: 8 → 16; sampler.seed: 0 → None"
    assert (
        str(error.value)
        == f"{tmp_path} holds another run ({changes}); choose another folder, or go on with its settings"
    )


def test_how_many_problems_are_asked_is_kept_but_does_not_make_another_run(tmp_path):
    path = tmp_path / "run.json"
    first = claim(path, {**RUN, "limit": 5, "problems": 5})
    assert claim(path, {**RUN, "limit": None, "problems": 9}) == first
    assert json.loads(path.read_text()) == {**RUN, "limit": None, "problems": 9}


def test_an_item_written_among_fewer_is_to_be_done_again(items, tmp_path):
    items.commit(4, {"beside": 2})
    assert [items.read(4, beside) is not None for beside in (0, 1, 2, 3)] == [True, True, True, False]
    assert [items.is_done(4, beside) for beside in (0, 1, 2, 3)] == [True, True, True, False]
    assert [file.name for file in items.folder.iterdir()] == ["000004.json"]


def test_a_damaged_description_is_written_anew(tmp_path, caplog):
    first = claim(tmp_path / "run.json", RUN)
    (tmp_path / "run.json").write_text("{")
    assert claim(tmp_path / "run.json", RUN) == first
    assert caplog.messages == [
        f"{tmp_path / 'run.json'} is damaged and is written anew; items of another run will be redone"
    ]
    assert json.loads((tmp_path / "run.json").read_text()) == RUN


def test_two_processes_cannot_work_in_one_folder_and_a_killed_one_leaves_no_lock(tmp_path):
    code = f"""
import time
from pathlib import Path
from sinkscope.evaluation.results_folder import locked
with locked(Path({str(tmp_path)!r})):
    print("locked", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(CallError) as error, locked(tmp_path):
            pass
        expected = f"{tmp_path}: another process is evaluating into it (process {other.pid}); wait for it or choose another folder"
        assert str(error.value) == expected
        other.send_signal(signal.SIGKILL)
    with locked(tmp_path):
        pass


def test_the_lock_goes_with_an_exception(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    with locked(tmp_path):
        pass


def test_what_a_killed_start_leaves_behind_is_no_obstacle(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "run.json.4711.writing").write_text("{")
    with locked(tmp_path):
        claim(tmp_path / "run.json", RUN)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CallError) as error, locked(tmp_path):
        pass
    assert (
        str(error.value)
        == f"{tmp_path} holds files without the run.json of a run (thesis.tex …); choose another folder or an empty one"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_shares_of_the_same_work_go_together_and_nothing_else(tmp_path):
    busy = f"{tmp_path}: another process is evaluating into it \\(process {os.getpid()}\\); wait for it or choose another folder"
    with locked(tmp_path, Share(0, 2)):
        assert is_working(tmp_path, Share(0, 2))
        assert not is_working(tmp_path, Share(1, 2))
        for other in (Share(0, 2), Share(0, 1), Share(1, 3)):
            with pytest.raises(CallError, match=busy), locked(tmp_path, other):
                pass
        with locked(tmp_path, Share(1, 2)):
            assert is_working(tmp_path, Share(1, 2))
    with locked(tmp_path), pytest.raises(CallError, match=busy), locked(tmp_path, Share(1, 2)):
        pass
    with locked(tmp_path, Share(1, 3)):
        pass


def test_two_that_start_together_cannot_both_go_on(tmp_path, monkeypatch):
    """Each division looks for the other before it takes its own lock; the second to look has to wait for the first to
    have taken it."""
    looked, entered, outcomes = threading.Event(), threading.Event(), {}
    others = results_folder._other_shares

    def slowly(folder, count):
        found = others(folder, count)
        if count == 2:  # it has seen nobody, and dawdles
            looked.set()
            entered.wait(0.5)
        return found

    monkeypatch.setattr(results_folder, "_other_shares", slowly)
    done = threading.Event()

    def start(count):
        try:
            with locked(tmp_path, Share(0, count)):
                outcomes[count] = "in"
                if count == 4:
                    entered.set()
                done.wait(30)
        except CallError:
            outcomes[count] = "refused"
            done.set()

    first = threading.Thread(target=start, args=(2,))
    first.start()
    assert looked.wait(30)
    second = threading.Thread(target=start, args=(4,))
    second.start()
    second.join(5)
    done.set()
    first.join()
    second.join()
    assert outcomes == {2: "in", 4: "refused"}


@pytest.mark.parametrize(
    "work", [lambda folder: locked(folder).__enter__(), lambda folder: claim(folder / "run.json", RUN)]
)
def test_a_file_system_without_locks_is_named_with_a_way_out(tmp_path, monkeypatch, work):
    import fcntl

    def refuse(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    way_out = "choose a folder on a disk where files can be locked"
    with pytest.raises(EvaluationError) as error:
        work(tmp_path)
    assert str(error.value) == f"{tmp_path / 'lock.claim'} cannot be locked ([Errno 37] No locks available); {way_out}"
    with pytest.raises(EvaluationError, match="cannot be locked .No locks available"):
        is_working(tmp_path, Share(0, 2))


def test_two_writers_of_one_file_do_not_share_a_name_for_what_is_unfinished(tmp_path, monkeypatch):
    names = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (names.append(old.name), replace(old, new)))
    write_json(tmp_path / "a.json", {})
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    write_json(tmp_path / "a.json", {})
    assert len(set(names)) == 2
    assert names[1] == "a.json.4711.writing"
