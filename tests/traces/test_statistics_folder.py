"""A folder of statistics holds the tensors, the manifest and the prompts of one run."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from sinkscope.errors import TraceError
from sinkscope.traces import read_statistics
from sinkscope.traces.statistics_folder import StatisticsFolder


def arrays_of(seed):
    return {"a": np.random.default_rng(seed).random(3), "n": np.array([seed])}


def begin(folder, run=1, expected=5):
    return StatisticsFolder(
        folder, {"run": run}, lambda one, other: {name: one[name] + other[name] for name in one}, expected
    )


@pytest.mark.parametrize(
    ("whose", "swapped", "said"),
    [
        (
            "the same run",
            ("statistics.safetensors",),
            "expected the tensors whose sha256 its manifest gives, found others",
        ),
        ("another run", ("statistics.safetensors",), "expected the run that its manifest names, found another"),
        ("another model", ("statistics.safetensors",), "expected the tensors whose sha256 its manifest gives"),
        ("another model", ("manifest.json",), "expected the tensors whose sha256 its manifest gives"),
        ("a longer run", ("statistics.safetensors",), "expected the 1 prompts that its manifest counts, found 2"),
    ],
)
def test_tensors_of_another_run_are_refused(tmp_path, whose, swapped, said):
    one, other = tmp_path / "one", tmp_path / "other"
    begin(one, expected=1).commit(0, arrays_of(0), {"model": {"name": "A"}}, {})
    prompts = 1 + (whose == "a longer run")
    for index in range(prompts):
        model = {"model": {"name": "AB"[whose == "another model"]}}
        begin(other, 1 + (whose == "another run"), prompts).commit(index, arrays_of(index + 7), model, {})
    for name in swapped:
        (one / name).write_bytes((other / name).read_bytes())
    with pytest.raises(TraceError, match=said + ".*the file belongs to another run; put its own back"):
        read_statistics(one)
    if whose != "another run" and swapped != ("manifest.json",):
        with pytest.raises(TraceError, match=said):
            begin(one, expected=3).fold()


def test_an_item_of_another_run_is_refused(tmp_path):
    begin(tmp_path / "one").commit(1, arrays_of(1), {}, {})
    begin(tmp_path / "other", run=2).commit(0, arrays_of(0), {}, {})
    begin(tmp_path / "third", run=2).commit(1, arrays_of(0), {}, {})
    item = "items/000001.safetensors"
    (tmp_path / "one" / item).write_bytes((tmp_path / "third" / item).read_bytes())
    with pytest.raises(
        TraceError, match=r"000001.safetensors: expected the run that its manifest names, found another"
    ):
        begin(tmp_path / "one").commit(0, arrays_of(0), {}, {})


def test_tensors_are_ahead_of_their_manifest_after_a_kill(tmp_path):
    folder = begin(tmp_path / "s")
    before = [(tmp_path / "s" / "manifest.json").read_bytes()]
    for index in range(2):
        folder.commit(index, arrays_of(index), {"model": {"name": "A"}}, {})
        before.append((tmp_path / "s" / "manifest.json").read_bytes())
    for content in before[:2]:
        (tmp_path / "s" / "manifest.json").write_bytes(content)
        manifest, arrays, _ = read_statistics(tmp_path / "s")
        assert arrays["n"] == [1]
        assert (manifest["prompts"], manifest["complete"], manifest["model"]) == (2, False, {"name": "A"})
    begin(tmp_path / "s").fold()
    assert (tmp_path / "s" / "manifest.json").read_bytes() == before[2]


def test_statistics_of_earlier_versions_are_read(tmp_path):
    begin(tmp_path / "s").commit(0, arrays_of(0), {"model": {"name": "A"}}, {})
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    del manifest["tensors"], manifest["checksum"]
    (tmp_path / "s" / "manifest.json").write_text(json.dumps(manifest))
    with safe_open(tmp_path / "s" / "statistics.safetensors", framework="np") as file:
        metadata = {name: text for name, text in file.metadata().items() if name not in ("run", "sha256")}
    save_file(arrays_of(0), tmp_path / "s" / "statistics.safetensors", metadata)
    assert read_statistics(tmp_path / "s")[1]["n"] == [0]
