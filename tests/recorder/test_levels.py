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
from sinkscope.errors import CallError, ModelError, TraceError
from sinkscope.interventions import HidePositions, HideTopSinks
from sinkscope.recorder.statistics_destination import merge_statistics
from sinkscope.statistics import Summary, Threshold, analyse, summarise
from sinkscope.statistics.statistic import values_of
from sinkscope.traces import export_trace, is_statistics, read_statistics
from sinkscope.traces.statistics_folder import StatisticsFolder
from sinkscope.traces.top_columns import keep_top

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


def test_one_generation_at_two_levels_is_one_prompt(kept):
    one, other = sinkscope.open_traces(kept / "columns")
    again = sinkscope.open_traces(kept / "top")[0]
    with pytest.raises(
        CallError,
        match=f"expected each trace once, as it is one prompt, found the values of {one.folder} in {again.folder}",
    ):
        analyse([one, again], choice=False)
    assert analyse([one, other], choice=False).prompts == 2


def test_top_reads_as_whole_columns_whose_means_are_exact(kept):
    for whole, top in zip(sinkscope.open_traces(kept / "columns"), sinkscope.open_traces(kept / "top"), strict=True):
        columns, found = whole.column_sums[:], top.column_sums[:]
        assert found.shape == top.column_sums.shape == columns.shape
        np.testing.assert_array_equal(np.isnan(found), np.isnan(columns))
        assert_close(np.nansum(found, axis=-1), np.nansum(columns, axis=-1), terms=columns.shape[-1])
        np.testing.assert_array_equal(np.nanmax(found, axis=-1), np.nanmax(columns, axis=-1))


@pytest.mark.parametrize(
    "index",
    [
        2,
        (1, 2),
        (-1, 1, 3),
        (slice(1, 5, 2), 0),
        (slice(None), 1, 2),
        (..., -3),
        (0, 0, 0, 5),
        (slice(2, 4), slice(1, 3), 0, slice(None, None, 2)),
    ],
)
def test_top_is_indexed_like_a_whole_array(kept, index):
    trace = sinkscope.open_traces(kept / "top")[0]
    whole = np.asarray(trace.column_sums)
    np.testing.assert_array_equal(trace.column_sums[index], whole[index])


def test_too_many_indices_are_refused(kept):
    with pytest.raises(IndexError, match="column_sums has axes step, layer, head, key; found 5 indices"):
        sinkscope.open_traces(kept / "top")[0].column_sums[0, 0, 0, 0, 0]


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


@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_first_tokens_rate_is_told_only_where_it_must_be_among_the_kept(diffusion, tmp_path, top):
    """Three keys of a head may be above 0.3; with fewer kept the first token may be one of them and not be there."""
    for keep in ("columns", "top"):
        more = {"top": top} if keep == "top" else {}
        with sinkscope.recording(diffusion, out=tmp_path / keep, keep=keep, **more):
            sinkscope.generate(diffusion, [5, 6, 7], length=4, block=4)
    whole, few = (
        sinkscope.analyse([sinkscope.open_trace(tmp_path / keep)], choice=False) for keep in ("columns", "top")
    )
    (expected,), (found,) = whole.find("concentration.gu_rate_first"), few.find("concentration.gu_rate_first")
    assert found.value == (None if top < 3 else expected.value)


def test_where_weights_were_zeroed_the_kept_columns_do_not_tell_how_many_queries_there_are(diffusion, tmp_path):
    for keep in ("columns", "top"):
        with (
            sinkscope.recording(diffusion, out=tmp_path / keep, keep=keep),
            HidePositions(range(4), effect="zero")(diffusion),
        ):
            sinkscope.generate(diffusion, [5, 6, 7, 8, 9], length=4, block=4)
    whole, few = (
        sinkscope.analyse([sinkscope.open_trace(tmp_path / keep)], choice=False) for keep in ("columns", "top")
    )
    for name in ("concentration.gu_rate", "concentration.gu_rate_first"):
        assert [one.find(name)[0].value is None for one in (whole, few)] == [False, True]


def test_an_analysis_of_a_top_trace_tells_what_that_of_the_whole_one_tells_or_nothing(kept):
    whole, top = (sinkscope.open_traces(kept / level)[0] for level in ("columns", "top"))
    values, found = (
        values_of(summarise(one, [Threshold(0.5), Threshold(EXCESS), Threshold(3.0)])) for one in (whole, top)
    )
    followed_apart = (
        ("movement.", "agreement.") if whole.causal else ()
    )  # in the newest queries' columns, which may miss one
    told = [key for key, value in found.items() if not np.isnan(value) and not key[0].startswith(followed_apart)]
    for key in told:
        assert found[key] == pytest.approx(values[key], rel=1e-4, abs=1e-6), key
    assert ("concentration.sinks_per_head", Threshold(3.0).place) in told  # where fewer are sinks than were kept
    assert ("concentration.sinks_per_head", Threshold(0.5).place) not in told
    assert np.isnan(
        [
            found["concentration.entropy", ()],
            found["concentration.gini", ()],
            found["groups.both", Threshold(3.0).place],
        ]
    ).all()


def test_top_traces_tell_nothing_of_sinks_that_one_of_them_may_lack(kept):
    """A mean over the prompts of which every sink was kept is one over the prompts with few sinks."""
    wholes, tops = (sinkscope.open_traces(kept / level) for level in ("columns", "top"))
    least, most = sorted(summarise(top).known_from[0] for top in tops)
    assert 0 < least < most
    between, above = Threshold((least + most) / 2), Threshold(most * 1.01)
    expected, found = (analyse(traces, [between, above], choice=False) for traces in (wholes, tops))
    assert found.find("concentration.sinks_per_head", **dict(between.place))[0].value is None
    for name in ("concentration.sinks_per_head", "movement.steps_with_sink"):
        mine, theirs = (one.find(name, **dict(above.place))[0] for one in (found, expected))
        assert (mine.value, mine.prompts) == (pytest.approx(theirs.value, rel=1e-4), 2)
    assert found.find("movement.steps_with_sink", **dict(between.place))[0].prompts == 2


def test_fewer_tokens_than_columns_to_keep():
    step = {"tokens": np.arange(3), "lengths": np.array(3), "column_sums": np.array([[[0.5, 2, 0.5]]], np.float32)}
    kept = keep_top(step, 5)
    np.testing.assert_array_equal(kept["top_column_sums"], [[[2, 0.5, 0.5, np.nan, np.nan]]])
    np.testing.assert_array_equal(kept["top_column_sums_key"], [[[1, 0, 2, -1, -1]]])
    assert np.isnan(kept["rest_column_sums"]).all()


def test_parquet_of_a_top_trace_has_only_what_was_kept(kept, tmp_path):
    import pyarrow.parquet

    top = sinkscope.open_traces(kept / "top")[0]
    found = pyarrow.parquet.read_table(export_trace(top, "parquet", tmp_path / "top")).column("column_sum").to_numpy()
    assert (~np.isnan(found)).sum() == TOP * top.steps * len(top.layers) * top.heads


def test_arrays_of_a_top_trace_go_out_with_a_rank_axis(kept, tmp_path):
    import xarray

    top = sinkscope.open_traces(kept / "top")[0]
    with xarray.open_zarr(export_trace(top, "zarr", tmp_path / "top"), consolidated=False) as dataset:
        assert dataset.top_column_sums.dims == ("step", "layer", "head", "rank")
        np.testing.assert_array_equal(dataset.top_column_sums_key.values, top.top_column_sums_key[:])
        np.testing.assert_array_equal(dataset.rest_column_sums.values, top.rest_column_sums[:])


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


def test_unknown_levels_are_refused(diffusion, tmp_path):
    with (
        pytest.raises(CallError, match="keep: expected one of columns, top, statistics, drift, found 'maps'"),
        sinkscope.recording(diffusion, tmp_path / "a", keep="maps"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_statistics_are_no_trace_and_say_so(kept):
    assert is_statistics(kept / "statistics")
    assert not is_statistics(kept / "columns" / "000000")
    with pytest.raises(TraceError, match="holds statistics, not a trace; `sinkscope sinks"):
        sinkscope.open_trace(kept / "statistics")
    with pytest.raises(TraceError, match="level: Input should be 'statistics', found"):
        read_statistics(kept / "columns" / "000000")


# The folder


def arrays_of(seed):
    return {"a": np.random.default_rng(seed).random(3), "n": np.array([seed])}


def fold(folder, expected=5):
    return StatisticsFolder(
        folder, {"run": 1}, lambda one, other: {name: one[name] * 0.5 + other[name] for name in one}, expected
    )


def test_prompts_are_folded_in_the_order_of_their_numbers_whoever_is_first(tmp_path):
    for name, order in (("a", (0, 1, 2, 3, 4)), ("b", (3, 1, 4, 0, 2))):
        one, other = fold(tmp_path / name), fold(tmp_path / name)
        said = [
            (one, other)[index % 2].commit(index, arrays_of(index), {"first": index}, {str(index): "x"})
            for index in order
        ]
        assert said == [False] * 4 + [True]
    first, second = (read_statistics(tmp_path / name) for name in "ab")
    expected = arrays_of(0)["a"]
    for index in range(1, 5):
        expected = expected * 0.5 + arrays_of(index)["a"]  # the earlier prompts first: this merge is not commutative
    np.testing.assert_array_equal(first[1]["a"], expected)
    np.testing.assert_array_equal(second[1]["a"], expected)
    assert first[0] == second[0]
    assert first[0]["first"] == 0
    assert first[2] == second[2] == dict.fromkeys(range(5), "x")


def test_what_a_kill_left_between_writing_and_cleaning_counts_once(tmp_path):
    folder = fold(tmp_path / "s", expected=3)
    folder.commit(0, arrays_of(0), {}, {})
    item = tmp_path / "s" / "items" / "000000.safetensors"
    folder.commit(1, arrays_of(1), {}, {})
    before = read_statistics(tmp_path / "s")[1]["n"]
    fold(tmp_path / "left", expected=3).commit(0, arrays_of(0), {}, {})
    item.write_bytes((tmp_path / "left" / "statistics.safetensors").read_bytes())
    again = fold(tmp_path / "s", expected=3)
    again.fold()
    assert not item.exists()
    np.testing.assert_array_equal(read_statistics(tmp_path / "s")[1]["n"], before)
    assert [again.done(index) for index in range(3)] == [True, True, False]


def test_a_folder_of_another_run_is_refused(tmp_path):
    fold(tmp_path / "s").commit(0, arrays_of(0), {}, {})
    with pytest.raises(CallError, match="holds statistics of another run: expected run 2, found 1"):
        StatisticsFolder(tmp_path / "s", {"run": 2}, merge_statistics, 5)


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CallError, match=r"already holds files \(notes.txt …\)"):
        fold(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_trace_is_no_place_for_statistics(kept):
    trace = kept / "columns" / "000000"
    before = sorted(trace.iterdir())
    with pytest.raises(TraceError, match="level: Input should be 'statistics', found"):
        fold(trace)
    assert sorted(trace.iterdir()) == before


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CallError, match="expected a folder, found a file on the way; choose another name"):
        fold(tmp_path / "file" / "s")


def test_a_folder_without_a_whole_prompt(tmp_path):
    fold(tmp_path / "s")
    with pytest.raises(TraceError, match="holds no complete prompt yet; run the command that began it again"):
        read_statistics(tmp_path / "s")


def test_a_damaged_file_is_refused(tmp_path):
    fold(tmp_path / "s").commit(0, arrays_of(0), {}, {})
    (tmp_path / "s" / "statistics.safetensors").write_bytes(b"damage")
    with pytest.raises(
        TraceError,
        match=r"statistics.safetensors: expected a safetensors file, found something else .*; the file was damaged or changed",
    ):
        read_statistics(tmp_path / "s")


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


def test_the_same_command_again_says_what_is_there_and_writes_nothing(
    alone, run, diffusion_folder, prompts, monkeypatch
):
    before = (alone / "statistics.safetensors").read_bytes()
    monkeypatch.setattr("sinkscope.decoding.generation.find_sampler", None)
    status, out, error = run("trace", diffusion_folder, "--prompts", prompts, "--out", alone, *COUNT)
    assert status == 0, error
    assert json.loads(out) == {"statistics": str(alone), "prompts": 5, "complete": True}
    assert (alone / "statistics.safetensors").read_bytes() == before


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


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"RANK": "2", "WORLD_SIZE": "2"},
            "share: expected an index from 0 to below its count, found 2 of 2",
        ),
    ],
)
def test_ranks_that_cannot_be_are_refused(run, diffusion_folder, prompts, tmp_path, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    status, _, error = run("trace", diffusion_folder, "--prompts", prompts, "--out", tmp_path / "s", *COUNT)
    assert status == 2
    assert message in error


def test_a_process_of_torchrun_counts_on_its_own_device(run, diffusion_folder, prompts, tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    asked = []

    def load(name, dtype, device):
        asked.append(device)
        raise ModelError("seen")

    monkeypatch.setattr(sinkscope, "load", load)
    for device in ("cuda", "cuda:0", "cpu"):
        run("trace", diffusion_folder, "--prompts", prompts, "--out", tmp_path / "s", *COUNT, "--device", device)
    assert asked == ["cuda:1", "cuda:0", "cpu"]


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


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ("1:2", "expected step:layer:head, separated by commas, found '1:2'"),
        ("0:3:0", "expected a step from 0, a layer below 3 and a head below 5"),
        ("a:b:c", "found 'a:b:c'"),
        ("0:-1:0", "expected a step from 0, a layer below 3 and a head below 5"),
    ],
)
def test_places_that_are_none_are_refused(run, diffusion_folder, tmp_path, places, message):
    status, _, error = run(
        "trace", diffusion_folder, "--prompt", SHORT, "--out", tmp_path / "t", "--length", 4, "--keep-maps", places
    )
    assert status == 2
    assert message in error
    assert not (tmp_path / "t").exists()


def test_maps_need_a_trace(run, diffusion_folder, tmp_path):
    status, _, error = run(
        "trace",
        diffusion_folder,
        "--prompt",
        SHORT,
        "--out",
        tmp_path / "t",
        "--keep-maps",
        "0:0:0",
        "--keep",
        "statistics",
    )
    assert status == 2
    assert "--keep-maps needs a trace" in error


@pytest.mark.parametrize("second", [{"steps": 4}, {"block": 12}, {"hide": True}])
def test_statistics_of_two_settings_are_not_put_into_one_folder(diffusion, tmp_path, second):
    first = {"length": 12, "steps": 8, "block": 6}
    hiding = HideTopSinks(1)(diffusion) if second.pop("hide", False) else nullcontext()
    said = "prompts of one setting: expected .* as for the first prompt, found .*; record each setting into a folder of its own"
    with pytest.raises(CallError, match=said), sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"):
        sinkscope.generate(diffusion, SHORT, **first, seed=0)
        sinkscope.generate(diffusion, [QUESTION, SHORT], **first, seed=5)
        with hiding:
            sinkscope.generate(diffusion, SHORT, **first | second)
    assert read_statistics(tmp_path / "s")[0]["prompts"] == 3
