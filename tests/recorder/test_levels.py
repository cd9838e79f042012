"""Levels of keeping: the largest columns read as whole ones again; statistics are those of the whole trace."""

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
from closeness import assert_close, terms_of
from processes import environment

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import HideTopSinks
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


# The largest columns


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


def test_top_reads_as_whole_columns_whose_means_are_exact(kept):
    for whole, top in zip(sinkscope.open_traces(kept / "columns"), sinkscope.open_traces(kept / "top"), strict=True):
        columns, found = whole.column_sums[:], top.column_sums[:]
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
        np.testing.assert_array_equal(sparse & few, dense & few)
        found += (dense & few).sum()
        assert not (sparse & ~dense & few).any()
    assert found > 20


# Statistics


def of_traces(folder, excess=3.0):
    """The same statistics from whole traces."""
    merged = None
    for trace in sinkscope.open_traces(folder):
        found = Summary.of(summarise(trace, Summary.thresholds(excess)), excess)
        if merged is None:
            merged = found
        else:
            merged.merge(found)
    return merged


def test_statistics_are_those_of_the_whole_traces(kept):
    manifest, arrays, texts = read_statistics(kept / "statistics")
    expected = of_traces(kept / "columns").to_arrays()
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    assert (manifest["complete"], manifest["prompts"], manifest["level"]) == (True, 2, "statistics")
    assert {path.name for path in (kept / "statistics").iterdir()} == {"manifest.json", "statistics.safetensors"}
    assert texts == {
        int(token): text
        for trace in sinkscope.open_traces(kept / "columns")
        for token, text in trace.manifest["vocabulary"].items()
    }


def test_a_generation_that_fails_counts_for_nothing(diffusion, tmp_path):
    def stop(step):
        if step.number == 3:
            raise KeyError("stopped")

    with pytest.raises(KeyError), sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"):
        sinkscope.generate(diffusion, SHORT, length=4)
        sinkscope.generate(diffusion, QUESTION, length=4, on_step=stop)
    manifest, arrays, _ = read_statistics(tmp_path / "s")
    assert (manifest["complete"], manifest["prompts"]) == (False, 1)
    assert arrays["steps"] == 4


def test_a_prompt_counts_once(diffusion, tmp_path):
    """With another seed it is another answer; one that failed did not count, and may be written again."""

    def stop(step):
        raise KeyError("stopped")

    with sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"):
        with pytest.raises(KeyError):
            sinkscope.generate(diffusion, SHORT, length=4, on_step=stop)
        for seed in (0, 1):
            sinkscope.generate(diffusion, SHORT, length=4, seed=seed)
        with pytest.raises(
            CallError,
            match=r"keep='statistics' counts each prompt once, found 'Q: .* again; leave it out, or use another seed",
        ):
            sinkscope.generate(diffusion, SHORT, length=4)
        sinkscope.generate(diffusion, QUESTION, length=4)
    assert read_statistics(tmp_path / "s")[0]["prompts"] == 3


# The folder


# The commands


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": f"Q: Tom has {n} apples and buys 5 more. How many apples does Tom have now?\nA:"})
            + "\n"
            for n in (3, 4, 7, 9, 2)
        )
    )
    return path


COUNT = ("--length", 6, "--block", 6, "--keep", "statistics", "--json")


@pytest.fixture(scope="module")
def alone(diffusion_folder, prompts, tmp_path_factory):
    """The statistics of the five prompts from one process, a separate one as torchrun's workers are."""
    out = tmp_path_factory.mktemp("alone") / "s"
    command = [sys.executable, "-m", "sinkscope", "trace", diffusion_folder, "--prompts", prompts, "--out", out, *COUNT]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=True, env=environment())
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
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
        "-m",
        "sinkscope",
    ]
    command += ["trace", diffusion_folder, "--prompts", prompts, "--out", out, *COUNT]
    done = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, check=True, env=environment(), timeout=300
    )
    assert json.loads(done.stdout)["complete"] is True  # one of them says so, once
    assert_same_statistics(alone, out)


@pytest.mark.slow
def test_the_same_command_goes_on_after_kill_9(alone, diffusion_folder, prompts, tmp_path):
    out = tmp_path / "s"
    command = [sys.executable, "-m", "sinkscope", "trace", diffusion_folder, "--prompts", prompts, "--out", out, *COUNT]
    process = subprocess.Popen(
        [str(one) for one in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    deadline = time.monotonic() + 240
    while not (out / "statistics.safetensors").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    manifest, _, _ = read_statistics(out)
    assert not manifest["complete"]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=True, env=environment())
    assert "prompts are done already" in done.stderr
    assert json.loads(done.stdout)["prompts"] == 5
    assert_same_statistics(alone, out)


def test_sinks_prints_the_statistics(alone, run):
    status, out, error = run("sinks", alone, "--json")
    assert (status, error) == (0, "")
    document = json.loads(out)
    assert (document["level"], document["prompts"], document["complete"]) == ("statistics", 5, True)
    expected = Summary.from_arrays(read_statistics(alone)[1])
    assert document["counts"]["sinks"] == expected.sinks
    assert document["counts"]["steps"] == 30
    assert set(document["means"]) == {"by_prompt", "by_layer_and_head", "norms_by_layer", "epsilon_curve"}
    status, out, _ = run("sinks", alone)
    assert status == 0
    assert "5 prompts, 30 steps" in out
    assert "entropy" in out


def test_other_settings_in_the_same_folder_are_refused(alone, run, diffusion_folder, prompts):
    status, _, error = run(
        "trace",
        diffusion_folder,
        "--prompts",
        prompts,
        "--out",
        alone,
        "--keep",
        "statistics",
        "--length",
        12,
        "--block",
        6,
    )
    assert status == 2
    assert "holds statistics of another run: expected sampler" in error


def test_trace_keeps_the_maps_it_is_asked_for(run, diffusion, diffusion_folder, tmp_path, capsys):
    from sinkscope.commands.trace import keep_maps
    from sinkscope.recorder.attention_map import recompute_map
    from sinkscope.traces.stored_maps import stored_map

    out = tmp_path / "t"
    status, _, _ = run(
        "trace",
        diffusion_folder,
        "--prompt",
        SHORT,
        "--out",
        out,
        "--length",
        4,
        "--keep-maps",
        "1:2:3,0:0:4",
        "--keep",
        "top",
        "--top",
        3,
    )
    assert status == 0
    keep_maps(diffusion, [out], [(9, 0, 0)])  # as of an answer that ended early
    assert f"{out}: no map of step 9, the trace has 4 steps" in capsys.readouterr().err
    trace = sinkscope.open_trace(out)
    assert trace.manifest["maps"] == [[0, 0, 4], [1, 2, 3]]
    assert trace.top_column_sums.shape[-1] == 3
    assert_close(
        stored_map(trace, 1, 2, 3),
        recompute_map(diffusion, trace, 1, 2, 3).attention,
        terms=terms_of(diffusion.network, 32),
    )
    status, printed, _ = run("map", out, "--step", 1, "--layer", 2, "--head", 3, "--json")
    assert json.loads(printed)["source"] == "stored"


@pytest.mark.parametrize("second", [{"steps": 4}, {"block": 12}, {"hide": True}])
def test_statistics_of_two_settings_are_not_put_into_one_folder(diffusion, tmp_path, second):
    first = {"length": 12, "steps": 8, "block": 6}
    hiding = HideTopSinks(1)(diffusion) if second.pop("hide", False) else nullcontext()
    said = "prompts of one setting: expected .* as for the first prompt, found .*; use a folder for each setting"
    with pytest.raises(CallError, match=said), sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"):
        sinkscope.generate(diffusion, SHORT, **first, seed=0)
        sinkscope.generate(diffusion, [QUESTION, SHORT], **first, seed=5)
        with hiding:
            sinkscope.generate(diffusion, SHORT, **first | second)
    assert read_statistics(tmp_path / "s")[0]["prompts"] == 3
