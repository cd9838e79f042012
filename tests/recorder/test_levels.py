"""Levels of keeping: the largest columns read as whole ones again; statistics are those of the whole trace."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from closeness import assert_close, terms_of
from processes import environment

import sinkscope
from sinkscope.decoding import resolve_settings
from sinkscope.errors import CallError
from sinkscope.statistics import Summary, summarise
from sinkscope.traces import read_statistics

QUESTION = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SHORT = "Q: Write a function f(x) that returns x plus 3.\nA:"
SETTINGS = {"diffusion": {"length": 12, "block": 6, "steps": 8}, "autoregressive": {"length": 7}}
TOP, EXCESS = 4, 0.7


@pytest.fixture(scope="module", params=list(SETTINGS))
def kept(request, tmp_path_factory):
    """The same batch of two prompts kept in three ways."""
    model, folder = request.getfixturevalue(request.param), tmp_path_factory.mktemp("levels")
    for level in ("columns", "top", "statistics"):
        with sinkscope.recording(model, out=folder / level, keep=level, **({"top": TOP} if level == "top" else {})):
            sinkscope.generate(model, [QUESTION, SHORT], **SETTINGS[request.param])
    return folder


def test_top_keeps_the_largest_columns_and_where_they_are(kept):
    for whole, top in zip(sinkscope.open_traces(kept / "columns"), sinkscope.open_traces(kept / "top"), strict=True):
        columns = whole.column_sums[:]
        order = np.argsort(np.where(np.isnan(columns), np.inf, -columns), axis=-1, kind="stable")[..., :TOP]
        np.testing.assert_array_equal(top.top_column_sums_key[:], order)
        np.testing.assert_array_equal(top.top_column_sums[:], np.take_along_axis(columns, order, axis=-1))
        assert top.manifest["level"] == "top"
        assert "value_norms" not in top.tensors
        np.testing.assert_array_equal(top.tokens[:], whole.tokens[:])
        np.testing.assert_array_equal(top.written[:], whole.written[:])
        found = top.column_sums[:]  # reads as whole columns whose means are exact
        assert found.shape == top.column_sums.shape == columns.shape
        np.testing.assert_array_equal(np.isnan(found), np.isnan(columns))
        assert_close(np.nansum(found, axis=-1), np.nansum(columns, axis=-1), terms=columns.shape[-1])
        np.testing.assert_array_equal(np.nanmax(found, axis=-1), np.nanmax(columns, axis=-1))


def test_sinks_of_a_top_trace_are_those_of_the_whole_one(kept):
    found = 0
    for whole, top in zip(sinkscope.open_traces(kept / "columns"), sinkscope.open_traces(kept / "top"), strict=True):
        mine, theirs = sinkscope.find_sinks(top, excess=EXCESS), sinkscope.find_sinks(whole, excess=EXCESS)
        dense = np.zeros(theirs.shape, bool)
        dense[theirs.step, theirs.layer, theirs.head, theirs.position] = True
        few = np.broadcast_to((dense.sum(axis=-1) <= TOP)[..., None], dense.shape)  # heads whose sinks were all kept
        sparse = np.zeros(theirs.shape, bool)
        sparse[mine.step, mine.layer, mine.head, mine.position] = True
        if whole.causal:  # a late key of a small column may be a sink beside larger ones that are none
            few = few & (np.asarray(top.column_sums[:]) == np.asarray(whole.column_sums[:]))
        np.testing.assert_array_equal(sparse & few, dense & few)
        found += (dense & few).sum()
    assert found > 20


def test_statistics_are_those_of_the_whole_traces(kept):
    manifest, arrays, texts = read_statistics(kept / "statistics")
    one, other = (
        Summary.of(summarise(trace, Summary.thresholds(3.0)), 3.0) for trace in sinkscope.open_traces(kept / "columns")
    )
    one.merge(other)
    expected = one.to_arrays()
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    assert (manifest["complete"], manifest["prompts"], manifest["level"]) == (True, 2, "statistics")
    assert {path.name for path in (kept / "statistics").iterdir()} == {"manifest.json", "statistics.safetensors"}
    vocabularies = [trace.manifest["vocabulary"].items() for trace in sinkscope.open_traces(kept / "columns")]
    assert texts == {int(token): text for one in vocabularies for token, text in one}


def test_a_prompt_counts_once(diffusion, tmp_path):
    """With another seed it is another answer; one that failed did not count, and may be written again."""

    def stop(step):
        raise KeyError("stopped")

    with sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"):
        with pytest.raises(KeyError):
            sinkscope.generate(diffusion, SHORT, length=4, on_step=stop)
        for seed in (0, 1):
            sinkscope.generate(diffusion, SHORT, length=4, seed=seed)
        with pytest.raises(CallError, match="keep='statistics' counts each prompt once, found 'Q: "):
            sinkscope.generate(diffusion, SHORT, length=4)
        sinkscope.generate(diffusion, QUESTION, length=4)
    assert read_statistics(tmp_path / "s")[0]["prompts"] == 3


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = (QUESTION.replace("7", str(number)) for number in (3, 4, 7, 9, 2))
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


COUNT = ("--length", 6, "--block", 6, "--keep", "statistics", "--json")


def in_a_process(*command, **more):
    """Run a command of sinkscope with one thread, as torchrun's workers do."""
    command = [str(one) for one in (sys.executable, *command)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment(), **more)


@pytest.fixture(scope="module")
def alone(diffusion_folder, prompts, tmp_path_factory):
    """The statistics of the five prompts from one process."""
    out = tmp_path_factory.mktemp("alone") / "s"
    done = in_a_process("-m", "sinkscope", "trace", diffusion_folder, "--prompts", prompts, "--out", out, *COUNT)
    assert json.loads(done.stdout) == {"statistics": str(out), "prompts": 5, "complete": True}
    return out


def assert_same_statistics(one, other):
    """To the bit: the same prompts, one at a time, on the same machine with as many threads."""
    mine, theirs = read_statistics(one), read_statistics(other)
    assert mine[1].keys() == theirs[1].keys()
    for name, array in mine[1].items():
        np.testing.assert_array_equal(array, theirs[1][name], err_msg=name)
    assert mine[2] == theirs[2]
    assert mine[0] == theirs[0]


@pytest.mark.slow
def test_two_processes_under_torchrun_give_what_one_gives(alone, diffusion_folder, prompts, tmp_path):
    out = tmp_path / "s"
    command = [*"-m torch.distributed.run --nproc-per-node 2 --master-port 0 -m sinkscope trace".split()]
    command += [diffusion_folder, "--prompts", prompts, "--out", out, *COUNT]
    done = in_a_process(*command, timeout=300)
    assert json.loads(done.stdout)["complete"] is True  # one of them says so, once
    assert_same_statistics(alone, out)


@pytest.mark.slow
def test_the_same_command_goes_on_after_kill_9(alone, diffusion_folder, prompts, tmp_path):
    out = tmp_path / "s"
    command = ["-m", "sinkscope", "trace", diffusion_folder, "--prompts", prompts, "--out", out, *COUNT]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([str(one) for one in (sys.executable, *command)], **silent, env=environment())
    deadline = time.monotonic() + 240
    while not (out / "statistics.safetensors").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    manifest, _, _ = read_statistics(out)
    assert not manifest["complete"]
    done = in_a_process(*command)
    assert "prompts are done already" in done.stderr
    assert json.loads(done.stdout)["prompts"] == 5
    assert_same_statistics(alone, out)


def test_trace_keeps_the_maps_it_is_asked_for(run, diffusion, diffusion_folder, tmp_path, capsys):
    from sinkscope.commands.trace import keep_maps
    from sinkscope.recorder.attention_map import recompute_map
    from sinkscope.traces.stored_maps import stored_map

    out = tmp_path / "t"
    kept = ("--length", 4, "--keep-maps", "1:2:3,0:0:4", "--keep", "top", "--top", 3)
    status, _, _ = run("trace", diffusion_folder, "--prompt", SHORT, "--out", out, *kept)
    assert status == 0
    keep_maps(diffusion, [out], [(9, 0, 0)])  # as of an answer that ended early
    assert f"{out}: no map of step 9, the trace has 4 steps" in capsys.readouterr().err
    trace = sinkscope.open_trace(out)
    assert trace.manifest["maps"] == [[0, 0, 4], [1, 2, 3]]
    assert trace.top_column_sums.shape[-1] == 3
    expected = recompute_map(diffusion, trace, 1, 2, 3).attention
    assert_close(stored_map(trace, 1, 2, 3), expected, terms=terms_of(diffusion.network, 32))
    status, printed, _ = run("map", out, "--step", 1, "--layer", 2, "--head", 3, "--json")
    assert json.loads(printed)["source"] == "stored"


def test_auto_keeps_the_largest_columns_where_all_would_be_too_many(
    run, diffusion, diffusion_folder, tmp_path, monkeypatch
):
    from sinkscope.commands import trace as command

    call = ("trace", diffusion_folder, "--prompt", SHORT, "--length", 8, "--block", 8)
    for most, level in ((10**9, "columns"), (1, "top")):
        monkeypatch.setattr(command, "MOST_COLUMNS", most)
        status, _, err = run(*call, "--out", tmp_path / level)
        assert status == 0 and ("keeping the 8 largest columns of each head" in err) == (level == "top")
        assert sinkscope.open_trace(tmp_path / level).manifest["level"] == level
    trace = sinkscope.open_trace(tmp_path / "columns")
    size = sum(getattr(trace, name)[:].nbytes for name in trace.tensors if "layer" in getattr(trace, name).axes)
    settings = resolve_settings(diffusion.family, length=8, block=8)
    assert command.trace_size(diffusion, trace.manifest["prompt_length"], settings) == size
