import dataclasses
import gzip
import json
import os

import pytest
from test_tables import result as made

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import read_results
from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.evaluation.results import claim, items_of, locked, state_of, summarise, write_results
from sinkscope.evaluation.tables import compare
from sinkscope.runs.folder import Share

RESULT = dataclasses.replace(made("none", "1101", "m", "lab-arith"), settings={"length": 64, "shots": 5}, seconds=1.5)


def test_a_result_counts_its_items():
    items = [
        {"correct": True, "seconds": 1.25, "not_enforced": [], "measures": {"strict": False}},
        {"correct": False, "seconds": 0.5, "not_enforced": ["b", "a"], "measures": {"strict": False}},
        {"correct": True, "seconds": 0.25, "not_enforced": ["a"], "measures": {"strict": True}},
    ]
    effects = {"removed_share": 0.5, "removed_share_committed": 0.75}, {"removed_share": 0.0}, {"removed_share": None}
    items = [{**item, "effect": effect} for item, effect in zip(items, effects, strict=True)]
    fields = ("model", "task", "hide", "settings", "weight_hash", "versions", "device", "dtype")
    result = summarise(items, **{name: getattr(RESULT, name) for name in fields})
    assert (result.n, result.correct, result.accuracy, result.outcomes, result.seconds) == (3, 2, 2 / 3, "101", 2.0)
    assert result.interval == wilson_interval(2, 3)
    assert (result.not_enforced, result.measures) == (("a", "b"), {"strict": pytest.approx(1 / 3)})
    assert (result.removed_share, result.removed_share_committed, result.hit_rate) == (0.25, 0.75, None)


def test_results_come_back_as_they_were_written(tmp_path):
    other = dataclasses.replace(RESULT, model="n", not_enforced=("files: x",))
    code = dataclasses.replace(RESULT, task="lab-code")
    write_results(tmp_path / "a", [RESULT])
    write_results(tmp_path / "a", [code])
    write_results(tmp_path / "a", [dataclasses.replace(RESULT, seconds=4.0)])
    write_results(tmp_path / "b", [other])
    found = [dataclasses.replace(RESULT, seconds=4.0), code, other]
    assert read_results(tmp_path / "a", str(tmp_path / "b")) == found


def test_compressed_results_come_back_too(tmp_path):
    """As a repository holds them, instead of results.json."""
    other, new = dataclasses.replace(RESULT, task="lab-code"), dataclasses.replace(RESULT, seconds=9.5)
    write_results(tmp_path, [RESULT, other])
    stored, path = gzip.compress((tmp_path / "results.json").read_bytes()), tmp_path / "results.json.gz"
    (tmp_path / "results.json").unlink()
    for damaged in (stored[:-9], stored[:20] + b"?" + stored[21:]):
        path.write_bytes(damaged)
        with pytest.raises(EvaluationError, match=r"results\.json\.gz: .*; the file is damaged"):
            read_results(tmp_path)
    path.write_bytes(stored)
    assert read_results(tmp_path) == [RESULT, other]
    write_results(tmp_path, [new])
    assert read_results(tmp_path) == [new, other]  # kept, and results.json is read first


def broken(path, text):
    path.mkdir()
    (path / "results.json").write_text(text)
    return path


def test_folders_without_results_and_damaged_files_are_named(tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text('{"model": {}}')
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "run.json").write_text('{"model": {}, "compares": "caches"}')
    for folder, kind, message in (
        (tmp_path / "nowhere", CallError, "expected a folder that `sinkscope evaluate` wrote"),
        (tmp_path / "caches", CallError, "found a comparison of caches"),
        (tmp_path / "half", EvaluationError, "is unfinished"),
        (broken(tmp_path / "cut", '{"format": 1,'), EvaluationError, "results.json: expected JSON, found "),
        (broken(tmp_path / "row", '{"format": 1, "results": [{"n": 1}]}'), EvaluationError, "0.model: .*damaged"),
    ):
        with pytest.raises(kind, match=message):
            read_results(folder)


def test_two_folders_with_the_same_result_are_named(tmp_path):
    write_results(tmp_path / "a", [RESULT])
    write_results(tmp_path / "b", [dataclasses.replace(RESULT, seconds=99.0)])
    write_results(tmp_path / "c", [dataclasses.replace(RESULT, device="other")])
    assert len(compare(read_results(tmp_path / "a", tmp_path / "c"))) == 2
    with pytest.raises(CallError, match="expected each model, task and rule once"):
        compare(read_results(tmp_path / "a", tmp_path / "b"))


def test_rows_of_other_weights_are_not_kept(tmp_path):
    write_results(tmp_path, [dataclasses.replace(RESULT, hide="top:1", weight_hash="of another model")])
    write_results(tmp_path, [RESULT])
    assert read_results(tmp_path) == [RESULT]


RUN = {"format": 1, "model": {"name": "a", "weight_hash": "f0"}, "sampler": {"length": 8, "seed": 0}, "limit": None}


def claimed(folder, **changes):
    return claim(folder, {"run.json": {**RUN, **changes}})["run.json"]


@pytest.fixture
def items(tmp_path):
    return items_of(tmp_path, "lab-arith", "none", "hash")


def test_an_item_comes_back_as_it_went_in(items, tmp_path):
    items.commit(17, {"text": "ä", "tokens": (1, 2), "correct": True})
    assert items.read(17) == {"run": items.run, "index": 17, "text": "ä", "tokens": [1, 2], "correct": True}
    assert items.read(16) is None and (tmp_path / "lab-arith" / "none" / "000017.json").exists()


def test_a_damaged_item_is_set_aside_and_reported(items, caplog):
    path = items.folder / "000003.json"
    for damage in (lambda content: content[:-20], lambda content: content.replace(b"checksum", b"sum")):
        items.commit(3, {"correct": False})
        path.write_bytes(damage(path.read_bytes()))
        assert items.read(3) is None
        assert caplog.messages[-1].startswith(f"{path} is damaged or of another run; it is kept as 000003.json.damaged")
        assert [file.name for file in items.folder.iterdir()] == ["000003.json.damaged"]


def test_an_item_in_another_items_place_or_of_another_run_does_not_count(items, tmp_path):
    items.commit(3, {"correct": True})
    os.rename(items.folder / "000003.json", items.folder / "000004.json")
    assert items.read(4) is None
    items.commit(5, {"correct": True})
    assert items_of(tmp_path, "lab-arith", "none", "other").read(5) is None


def test_the_same_run_goes_on(tmp_path):
    first = claimed(tmp_path, limit=5, problems=5)
    assert claimed(tmp_path, model={"name": "b", "weight_hash": "f0"}) == first  # the same weights under another path
    assert claimed(tmp_path, problems=9) == first
    assert json.loads((tmp_path / "run.json").read_text()) == {**RUN, "problems": 9}
    (tmp_path / "run.json").write_text("{")  # damaged: it is written anew
    assert claimed(tmp_path) == first


def test_another_run_is_refused_by_what_differs_before_anything_is_written(tmp_path):
    claimed(tmp_path)
    other = {**RUN, "model": {"name": "b", "weight_hash": "f1"}, "sampler": {"length": 16}, "limit": 5}
    changes = "other weights; sampler.length: 8 → 16; sampler.seed: 0 → None"
    with pytest.raises(CallError, match=rf"holds another run \({changes}\)"):
        claim(tmp_path, {"task/task.json": {}, "run.json": other})
    assert not (tmp_path / "task").exists()


def test_an_item_written_among_fewer_is_to_be_done_again(items, tmp_path):
    items.commit(4, {"beside": 2})
    assert [items.read(4, beside) is not None for beside in (0, 1, 2, 3)] == [True, True, True, False]
    assert [file.name for file in items.folder.iterdir()] == ["000004.json"]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CallError, match=r"holds files without a run.json \(thesis.tex …\)"), locked(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_shares_of_the_same_work_go_together_and_nothing_else(tmp_path):
    busy = f"another process is evaluating into it .process {os.getpid()}.; wait for it or choose another folder"
    assert state_of(tmp_path, Share(0, 2)) == (False, 0)
    with locked(tmp_path, Share(0, 2)):
        assert state_of(tmp_path, Share(0, 2))[0]
        assert not state_of(tmp_path, Share(1, 2))[0]
        for other in (Share(0, 2), Share(0, 1), Share(1, 3)):
            with pytest.raises(CallError, match=busy), locked(tmp_path, other):
                pass
        with locked(tmp_path, Share(1, 2)):
            assert state_of(tmp_path, Share(1, 2))[0]
    last = state_of(tmp_path, Share(1, 2))[1]
    with locked(tmp_path), pytest.raises(CallError, match=busy), locked(tmp_path, Share(1, 2)):
        pass
    with locked(tmp_path, Share(1, 2)):
        assert state_of(tmp_path, Share(1, 2))[1] > last > 0
