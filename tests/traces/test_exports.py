"""An exported trace reads back unchanged, with its axes and units."""

import importlib.util
import json
import pickle
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow.parquet
import pytest
import xarray
import zarr

from sinkscope import cli
from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import TraceWriter, export_trace, exporting, open_trace, parquet, to_xarray
from sinkscope.traces.trace_array import TraceArray

STEPS, LAYERS, HEADS, KV_HEADS, FIRST = 19, 2, 6, 3, 4
INTEGERS = {"masked": np.uint8} | dict.fromkeys(("tokens", "written", "predicted", "lengths"), np.int32)
NOTHING = {"tokens": -1, "written": -1, "predicted": -1, "masked": 0, "lengths": 0}
WIDER = ("written", "predicted", "confidence")
SINKS = 2
SIZES = {"layer": LAYERS, "head": HEADS, "kv_head": KV_HEADS, "sink": SINKS}
NAMES = [name for name in TRACE_AXES if not name.startswith(("top_", "rest_"))]


def write_trace(folder, steps=STEPS, complete=True):
    """A canvas that grows by one position a step; random numbers in every tensor."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True)
    manifest = {
        "model": {"name": "org/model"},
        "layers": ["a.0", "a.1"],
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "causal": True,
        "vocabulary": {str(token): f" word{token}" for token in range(0, 60)} | {"7": "Ċ漢"},
    }
    writer = TraceWriter(folder, manifest)
    for number in range(steps):
        step = {}
        for name in NAMES:
            shape = [SIZES.get(axis, FIRST + number + (name in WIDER)) for axis in TRACE_AXES[name][1:]]
            step[name] = (
                rng.integers(0, 99, shape).astype(INTEGERS[name]) if name in INTEGERS else rng.random(shape, np.float32)
            )
        step["masked"] %= 2
        for group in ("masked", "prompt"):
            step[f"column_sums_{group}"] *= step["column_sums"]
        step["lengths"] = np.array(FIRST + number, np.int32)
        writer.add(step)
    writer.close(complete=complete)
    return open_trace(folder)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "grown")


def filled(trace, name):
    """A tensor with every axis as long as the longest of that name; keys and positions are the same axis here."""
    array = getattr(trace, name)[:]
    if array.ndim == 1 or TRACE_AXES[name][-1] == "sink":
        return array
    whole = np.full((*array.shape[:-1], FIRST + STEPS), NOTHING.get(name, np.nan), array.dtype)
    whole[..., : array.shape[-1]] = array
    return whole


def test_numpy_archives_have_no_date_which_a_wrong_clock_could_not_write(trace, tmp_path):
    with zipfile.ZipFile(export_trace(trace, "numpy", tmp_path / "run")) as archive:
        assert {part.date_time for part in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_numpy_holds_the_tensors_as_they_are_and_the_manifest(trace, tmp_path):
    path = export_trace(trace, "numpy", tmp_path / "run")
    assert path == tmp_path / "run.npz"
    with np.load(path) as loaded:
        assert set(loaded.files) == {*NAMES, "manifest.json"}
        for name in NAMES:
            np.testing.assert_array_equal(loaded[name], getattr(trace, name)[:])
            assert loaded[name].dtype == getattr(trace, name).dtype
        manifest = json.loads(loaded["manifest.json"])
    assert manifest == trace.manifest
    assert manifest["axes"]["value_norms"] == ["step", "layer", "kv_head", "position"]


def test_zarr_has_dimensions_units_and_chunks_by_layer(trace, tmp_path):
    path = export_trace(trace, "zarr", tmp_path / "run")
    group = zarr.open_group(str(path), mode="r")
    assert set(group.array_keys()) == set(NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(group[name][:], filled(trace, name))
        assert group[name].metadata.dimension_names == TRACE_AXES[name]
        assert group[name].attrs["units"] == TRACE_UNITS[name]
    assert group["column_sums"].chunks == (16, 1, HEADS, FIRST + STEPS)
    assert json.loads(group.attrs["manifest"]) == trace.manifest


def test_xarray_reads_the_zarr_group(trace, tmp_path):
    path = export_trace(trace, "zarr", tmp_path / "run")
    with xarray.open_zarr(path, consolidated=False) as dataset:
        assert dict(dataset.sizes) == {
            "step": STEPS,
            "layer": LAYERS,
            "head": HEADS,
            "kv_head": KV_HEADS,
            "sink": SINKS,
            "key": FIRST + STEPS,
            "position": FIRST + STEPS,
        }
        np.testing.assert_array_equal(
            dataset.column_sums.isel(step=5, layer=1).values, filled(trace, "column_sums")[5, 1]
        )
        np.testing.assert_array_equal(dataset.tokens.values, filled(trace, "tokens"))
        assert dataset.attrs["layers"] == ["a.0", "a.1"]


def test_netcdf_round_trip(trace, tmp_path):
    path = export_trace(trace, "xarray", tmp_path / "run")
    assert path.suffix == ".nc"
    with xarray.open_dataset(path) as dataset:
        for name in NAMES:
            np.testing.assert_array_equal(dataset[name].values, filled(trace, name))
            assert dataset[name].dims == TRACE_AXES[name]
            assert dataset[name].attrs["units"] == TRACE_UNITS[name]
        assert dataset.attrs["layers"] == "a.0\na.1"
        assert json.loads(dataset.attrs["manifest"]) == trace.manifest


def test_a_dataset_that_has_read_nothing_can_be_pickled(trace):
    again = pickle.loads(pickle.dumps(to_xarray(trace)))
    assert again.identical(to_xarray(trace))


def test_a_dataset_reads_only_what_is_indexed(trace, monkeypatch):
    dataset = to_xarray(trace)
    asked = []
    original = TraceArray.__getitem__
    monkeypatch.setattr(
        TraceArray, "__getitem__", lambda self, index: asked.append((self.name, index)) or original(self, index)
    )
    found = dataset.column_sums.isel(step=slice(3, 9, 2), layer=1, head=[0, 4], key=slice(None, None, -1)).values
    np.testing.assert_array_equal(found, filled(trace, "column_sums")[3:9:2, 1][:, [0, 4], ::-1])
    assert {name for name, _ in asked} == {"column_sums"}
    assert asked[0][1][1] in (1, slice(1, 2, 1))
    np.testing.assert_array_equal(dataset.lengths.values, trace.lengths[:])


@pytest.mark.parametrize("at_once", [1 << 19, 20])
def test_parquet_has_a_row_per_step_layer_head_and_position(trace, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", at_once)
    path = export_trace(trace, "parquet", tmp_path / "run")
    file = pyarrow.parquet.ParquetFile(path)
    assert file.num_row_groups == STEPS * (1 if at_once > 1000 else LAYERS)
    table = file.read()
    rows = table.to_pylist()
    assert len(rows) == LAYERS * HEADS * sum(range(FIRST + 1, FIRST + STEPS + 1)), (
        "and one behind the canvas, which the step writes"
    )
    keys = [(row["step"], row["layer"], row["head"], row["position"]) for row in rows]
    assert keys == sorted(set(keys))
    arrays = {name: getattr(trace, name)[:] for name in NAMES}
    for row in rows[::37]:
        step, layer, head, position = (row[name] for name in ("step", "layer", "head", "position"))
        if position == arrays["lengths"][step]:
            assert (row["token"], row["text"], row["masked"]) == (-1, None, False) and np.isnan(row["column_sum"])
            assert (
                row["written"] == arrays["written"][step, position]
                and row["confidence"] == arrays["confidence"][step, position]
            )
            continue
        assert row["token"] == arrays["tokens"][step, position]
        assert row["text"] == trace.manifest["vocabulary"].get(str(row["token"]))
        assert row["masked"] is bool(arrays["masked"][step, position])
        assert row["written"] == arrays["written"][step, position]
        for name in ("column_sums", "column_sums_masked", "self_attention", "last_query"):
            assert np.float32(row[parquet.COLUMNS[name]]) == arrays[name][step, layer, head, position]
        for name in ("value_norms", "key_norms"):
            assert np.float32(row[parquet.COLUMNS[name]]) == arrays[name][step, layer, head // 2, position]
        for sink in range(SINKS):
            assert np.float32(row[f"sink_token_column_{sink}"]) == arrays["sink_token_columns"][step, layer, head, sink]
        assert np.float32(row["hidden_norm"]) == arrays["hidden_norms"][step, layer, position]
        assert np.float32(row["confidence"]) == arrays["confidence"][step, position]


def test_parquet_says_units_and_manifest(trace, tmp_path):
    schema = pyarrow.parquet.read_schema(export_trace(trace, "parquet", tmp_path / "run"))
    assert schema.field("column_sum").metadata == {b"units": TRACE_UNITS["column_sums"].encode()}
    assert all(schema.field(name).metadata[b"units"] for name in schema.names)
    assert json.loads(schema.metadata[b"manifest"]) == trace.manifest


@pytest.mark.parametrize("target", ["numpy", "zarr", "parquet"])
def test_no_more_than_a_part_is_read_at_a_time(trace, tmp_path, monkeypatch, target):
    asked = []
    original = TraceArray._read
    monkeypatch.setattr(
        TraceArray,
        "_read",
        lambda self, start, stop, rest: asked.append(stop - start) or original(self, start, stop, rest),
    )
    export_trace(trace, target, tmp_path / "run")
    assert max(asked) == max(part.steps for part in trace.parts) < STEPS


def test_an_incomplete_trace_goes_out_as_far_as_it_is_whole(tmp_path):
    trace = write_trace(tmp_path / "cut", steps=5, complete=False)
    with np.load(export_trace(trace, "numpy", tmp_path / "run")) as loaded:
        assert len(loaded["tokens"]) == 5
        assert json.loads(loaded["manifest.json"])["complete"] is False


# What is refused


@pytest.mark.parametrize("name", ["run", "run.v1", "x.tar.gz", "run.npz"])
def test_a_name_gets_the_usual_suffix_where_it_has_another(trace, tmp_path, name):
    written = export_trace(trace, "numpy", tmp_path / name)
    assert written.name == f"{name.removesuffix('.npz')}.npz" and [*tmp_path.iterdir()] == [written]


def content(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in (path, *path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("target", ["numpy", "zarr", "parquet", "xarray"])
@pytest.mark.parametrize("name", ["c:run", "a::run"])
def test_a_name_that_a_library_may_take_for_an_address_is_that_of_a_file(trace, tmp_path, monkeypatch, target, name):
    usual = export_trace(trace, target, tmp_path / "usual")
    here = tmp_path / "here"
    (here / name).parent.mkdir(parents=True)
    monkeypatch.chdir(here)
    written = export_trace(trace, target, name)
    assert content(here / written) == content(usual)
    assert [path for path in here.rglob("*") if path.is_file() and not path.is_relative_to(here / written)] == []


def test_what_is_there_is_not_overwritten(trace, tmp_path):
    (tmp_path / "run.npz").write_text("mine")
    with pytest.raises(CallError, match=r"run.npz is there already; choose another name"):
        export_trace(trace, "numpy", tmp_path / "run.npz")
    assert (tmp_path / "run.npz").read_text() == "mine"


def test_a_trace_without_a_step_is_refused(tmp_path):
    trace = write_trace(tmp_path / "empty", steps=0, complete=False)
    with pytest.raises(TraceError, match="holds no whole step yet; there is nothing to export"):
        export_trace(trace, "numpy", tmp_path / "run")


@pytest.mark.parametrize(("target", "package"), [("xarray", "xarray"), ("zarr", "zarr"), ("parquet", "pyarrow")])
def test_a_missing_package_is_one_message_that_says_how_to_get_it(trace, tmp_path, monkeypatch, target, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    with pytest.raises(
        CallError,
        match=rf"export to {target} needs {package}, which is not installed: pip install 'sinkscope\[export\]'",
    ):
        export_trace(trace, target, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_tensor_too_large_for_netcdf_is_sent_to_zarr(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST_NETCDF", 1000)
    with pytest.raises(CallError, match="export to zarr, which xarray reads as well"):
        export_trace(trace, "xarray", tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_nothing_behind(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(
        np.lib.format,
        "write_array_header_1_0",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(TraceError, match=r"cannot be written \(.*No space left on device\)"):
        export_trace(trace, "numpy", tmp_path / "run")
    assert not list(tmp_path.iterdir())


# The command


def test_the_command_writes_one_file_for_each_numbered_trace(trace, tmp_path, monkeypatch, capsys):
    for name in ("000000", "000001"):
        shutil.copytree(trace.folder, tmp_path / "several" / name)
    monkeypatch.setattr(
        sys,
        "argv",
        ["sinkscope", "export", str(tmp_path / "several"), "--to", "numpy", "--out", str(tmp_path / "o"), "--json"],
    )
    cli.main()
    document = json.loads(capsys.readouterr().out)
    assert [one["out"] for one in document["exports"]] == [
        str(tmp_path / "o" / f"00000{number}.npz") for number in (0, 1)
    ]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["000000.npz", "000001.npz"]


def test_exports_of_numbered_traces_appear_together(trace, tmp_path, monkeypatch, capsys):
    """One that was ended is made anew by the same command, beside what else is in the folder."""
    from sinkscope.traces import exporting

    for name in ("000000", "000001"):
        shutil.copytree(trace.folder, tmp_path / "several" / name)
    export, out = exporting.export_trace, tmp_path / "o"

    def stop(one, *rest):
        if one.folder.name == "000001":
            raise KeyboardInterrupt
        return export(one, *rest)

    def run(to):
        monkeypatch.setattr(
            sys, "argv", ["sinkscope", "export", str(tmp_path / "several"), "--to", to, "--out", str(out)]
        )
        try:
            cli.main()
        except SystemExit as end:
            return end.code
        return 0

    out.mkdir()
    (out / "notes").touch()
    with monkeypatch.context() as ended:
        ended.setattr("sinkscope.traces.export_trace", stop)
        assert run("numpy") == 130 and [one.name for one in out.iterdir()] == ["notes"]
    assert run("numpy") == 0 and run("parquet") == 0
    assert sorted(one.name for one in out.iterdir()) == [
        "000000.npz",
        "000000.parquet",
        "000001.npz",
        "000001.parquet",
        "notes",
    ]
    capsys.readouterr()
    assert run("numpy") == 2
    assert (
        capsys.readouterr().err
        == f"sinkscope: error: {out}/000000.npz is there already; choose another folder or delete it\n"
    )


def test_one_numbered_trace_is_exported_into_a_folder_too(trace, tmp_path, monkeypatch, capsys):
    shutil.copytree(trace.folder, tmp_path / "one" / "000000")
    for given, out, written in (("one", "o", "o/000000.npz"), ("one/000000", "p", "p.npz")):
        monkeypatch.setattr(
            sys, "argv", ["sinkscope", "export", str(tmp_path / given), "--to", "numpy", "--out", str(tmp_path / out)]
        )
        cli.main()
        assert capsys.readouterr().out.strip() == str(tmp_path / written) and (tmp_path / written).is_file()


def test_traces_load_no_export_package():
    program = "import sys, sinkscope.traces; print({'xarray', 'zarr', 'pyarrow'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )


def test_parquet_gives_each_query_head_the_key_head_that_it_reads(tmp_path):
    """Layer 1 has one key head for all query heads; the trace holds NaN in the other."""
    (tmp_path / "run").mkdir()
    writer = TraceWriter(
        tmp_path / "run", {"layers": ["a.0", "a.1"], "heads": 4, "kv_heads": 2, "causal": False, "vocabulary": {}}
    )
    norms = np.arange(1.0, 13.0, dtype=np.float32).reshape(2, 2, 3)
    norms[1, 1] = np.nan
    columns = np.ones((2, 4, 3), np.float32)
    writer.add(
        {
            "tokens": np.zeros(3, np.int32),
            "lengths": np.array(3, np.int32),
            "column_sums": columns,
            "value_norms": norms,
        }
    )
    writer.close(complete=True)
    rows = pyarrow.parquet.read_table(
        export_trace(open_trace(tmp_path / "run"), "parquet", tmp_path / "table")
    ).to_pylist()
    found = [[row["value_norm"] for row in rows if (row["layer"], row["position"]) == (layer, 2)] for layer in (0, 1)]
    assert found == [[3, 3, 6, 6], [9, 9, 9, 9]]
