"""A folder of statistics holds the prompts of one run, merged in order, however it was interrupted."""

import itertools

import numpy as np
import pytest

from sinkscope.errors import CallError, TraceError
from sinkscope.traces import is_statistics, read_statistics
from sinkscope.traces.statistics_folder import StatisticsFolder


def arrays_of(seed):
    return {"a": np.random.default_rng(seed).random(3), "n": np.array([seed])}


def merge(one, other):
    return {name: one[name] * 2 + other[name] for name in one}  # depends on the order


def begin(folder, run=1, expected=3):
    return StatisticsFolder(folder, {"run": run}, merge, expected)


def test_prompts_are_merged_in_the_order_of_their_numbers(tmp_path):
    found = []
    for number, order in enumerate(itertools.permutations(range(3))):
        folder = tmp_path / str(number)
        completed = [
            begin(folder).commit(index, arrays_of(index), {"model": {"name": f"m{index}"}}, {str(index): "x"})
            for index in order
        ]
        assert completed == [False, False, True] and not (folder / "items").exists() and is_statistics(folder)
        assert all(begin(folder).done(index) for index in range(3))
        manifest, arrays, texts = read_statistics(folder)
        assert [manifest[key] for key in ("prompts", "complete", "expected")] == [3, True, 3]
        assert manifest["model"] == {"name": "m0"} and texts == {0: "x", 1: "x", 2: "x"}
        found.append((folder / "statistics.safetensors").read_bytes())
        assert arrays["n"] == merge(merge(arrays_of(0), arrays_of(1)), arrays_of(2))["n"]
    assert len({content[-24:] for content in found}) == 1


def test_a_prompt_that_waits_is_merged_by_the_next_run_and_items_of_a_kill_are_removed(tmp_path):
    folder = begin(tmp_path)
    folder.commit(0, arrays_of(0), {}, {})
    merged = (tmp_path / "items" / "000000.safetensors", tmp_path / "statistics.safetensors")
    folder.commit(2, arrays_of(2), {}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatisticsFolder, "fold", lambda _: False)  # killed between the item and the merge
        folder.commit(1, arrays_of(1), {}, {})
        merged[0].write_bytes((tmp_path / "items" / "000001.safetensors").read_bytes())
    assert read_statistics(tmp_path)[0]["prompts"] == 1 and folder.done(1)
    assert begin(tmp_path).fold() and read_statistics(tmp_path)[0]["complete"]


def test_a_folder_of_unknown_length_is_complete_when_it_is_closed(tmp_path):
    folder = begin(tmp_path, expected=None)
    with pytest.raises(TraceError, match="holds no complete prompt yet"):
        read_statistics(tmp_path)
    folder.commit(0, arrays_of(0), {}, {})
    assert not read_statistics(tmp_path)[0]["complete"]
    folder.close()
    assert read_statistics(tmp_path)[0]["complete"]


def test_files_and_settings_of_another_run_are_refused(tmp_path):
    for run in (1, 2):
        folder = begin(tmp_path / str(run), run)
        for index in (0, 2):
            folder.commit(index, arrays_of(index), {}, {})
    with pytest.raises(CallError, match="holds statistics of another run: expected run 2, found 1"):
        begin(tmp_path / "1", run=2)
    for name in ("statistics.safetensors", "items/000002.safetensors"):
        own = (tmp_path / "1" / name).read_bytes()
        (tmp_path / "1" / name).write_bytes((tmp_path / "2" / name).read_bytes())
        with pytest.raises(TraceError, match=f"{name}: expected the run that its manifest names, found another"):
            begin(tmp_path / "1").commit(1, arrays_of(1), {}, {})
        (tmp_path / "1" / name).write_bytes(own)
