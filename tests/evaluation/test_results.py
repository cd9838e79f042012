import dataclasses
import gzip
import subprocess
import sys

import pytest

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation import Result, read_results
from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.evaluation.results import summarise, write_results
from sinkscope.evaluation.tables import compare

RESULT = Result(
    model="m",
    task="lab-arith",
    hide="none",
    n=4,
    correct=3,
    accuracy=0.75,
    interval=(0.30, 0.95),
    settings={"length": 64, "shots": 5},
    weight_hash="f0",
    versions={"torch": "2"},
    device="cpu",
    dtype="float32",
    outcomes="1101",
    seconds=1.5,
)


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


def test_the_figures_and_the_sandbox_load_no_torch():
    code = "import sys, sinkscope.evaluation, sinkscope.evaluation.results, sinkscope.evaluation.sandbox\n"
    code += "print({'torch', 'transformers', 'scipy', 'tokenizers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


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
