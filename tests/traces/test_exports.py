"""An exported trace reads back unchanged, with its axes and units."""

import json
import pickle
import shutil

import numpy as np
import pyarrow.parquet
import pytest
import xarray
import zarr
from grown_traces import FIRST_LENGTH, HEADS, LAYERS, MANIFEST, SINKS, SIZES, dense, make_steps, write_trace

from sinkscope.axes import TRACE_AXES, TRACE_UNITS
from sinkscope.errors import CallError
from sinkscope.traces import export_trace, exporting, open_trace, to_xarray

STEPS = 19
LONGEST = FIRST_LENGTH + STEPS  # keys and positions are the same axis: one behind the last canvas, which a step writes
NAMES = [name for name in TRACE_AXES if not name.startswith(("top_", "rest_"))]


@pytest.fixture(scope="module")
def steps():
    return make_steps(STEPS, names=NAMES)


@pytest.fixture(scope="module")
def trace(steps, tmp_path_factory):
    manifest = {**MANIFEST, "model": {"name": "org/model"}}
    return open_trace(write_trace(tmp_path_factory.mktemp("traces") / "grown", steps, manifest))


def filled(steps, name):
    return dense(steps, name, None if TRACE_AXES[name][-1] == "sink" else LONGEST)


def test_numpy_holds_the_tensors_as_they_are_and_the_manifest(trace, tmp_path):
    path = export_trace(trace, "numpy", tmp_path / "run.v1")
    assert path == tmp_path / "run.v1.npz"
    with np.load(path) as loaded:
        assert set(loaded.files) == {*NAMES, "manifest.json"}
        for name in NAMES:
            np.testing.assert_array_equal(loaded[name], getattr(trace, name)[:])
            assert loaded[name].dtype == getattr(trace, name).dtype
        assert json.loads(loaded["manifest.json"]) == trace.manifest


def test_zarr_has_dimensions_units_and_chunks_by_layer(trace, steps, tmp_path):
    path = export_trace(trace, "zarr", tmp_path / "run")
    group = zarr.open_group(str(path), mode="r")
    assert set(group.array_keys()) == set(NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(group[name][:], filled(steps, name))
        assert group[name].metadata.dimension_names == TRACE_AXES[name]
        assert group[name].attrs["units"] == TRACE_UNITS[name]
    assert group["column_sums"].chunks == (16, 1, HEADS, LONGEST)
    assert json.loads(group.attrs["manifest"]) == trace.manifest
    with xarray.open_zarr(path, consolidated=False) as dataset:
        assert dict(dataset.sizes) == {**SIZES, "step": STEPS, "key": LONGEST, "position": LONGEST}


def test_netcdf_round_trip(trace, steps, tmp_path):
    with xarray.open_dataset(export_trace(trace, "xarray", tmp_path / "run")) as dataset:
        for name in NAMES:
            np.testing.assert_array_equal(dataset[name].values, filled(steps, name))
            assert dataset[name].dims == TRACE_AXES[name] and dataset[name].attrs["units"] == TRACE_UNITS[name]
        assert dataset.attrs["layers"] == "\n".join(trace.layers)
        assert json.loads(dataset.attrs["manifest"]) == trace.manifest


def test_a_dataset_is_read_where_it_is_indexed_and_can_be_pickled(trace, steps):
    dataset = pickle.loads(pickle.dumps(to_xarray(trace)))
    found = dataset.column_sums.isel(step=slice(3, 9, 2), layer=1, head=[0, 4], key=slice(None, None, -1)).values
    np.testing.assert_array_equal(found, filled(steps, "column_sums")[3:9:2, 1][:, [0, 4], ::-1])


def test_parquet_has_a_row_per_step_layer_head_and_position(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "ROWS_AT_ONCE", 20)
    file = pyarrow.parquet.ParquetFile(export_trace(trace, "parquet", tmp_path / "run"))
    assert file.num_row_groups == STEPS * LAYERS
    schema, rows = file.schema_arrow, file.read().to_pylist()
    assert schema.field("column_sum").metadata == {b"units": TRACE_UNITS["column_sums"].encode()}
    assert all(schema.field(name).metadata[b"units"] for name in schema.names)
    assert json.loads(schema.metadata[b"manifest"]) == trace.manifest
    assert len(rows) == LAYERS * HEADS * sum(range(FIRST_LENGTH + 1, LONGEST + 1))  # one behind each canvas
    keys = [(row["step"], row["layer"], row["head"], row["position"]) for row in rows]
    assert keys == sorted(set(keys))
    arrays = {name: getattr(trace, name)[:] for name in NAMES}
    for row in rows[::37]:
        step, layer, head, position = (row[name] for name in ("step", "layer", "head", "position"))
        assert row["written"] == arrays["written"][step, position]
        assert np.float32(row["confidence"]) == arrays["confidence"][step, position]
        if position == arrays["lengths"][step]:
            assert (row["token"], row["text"], row["masked"]) == (-1, None, False) and np.isnan(row["column_sum"])
            continue
        assert row["token"] == arrays["tokens"][step, position]
        assert row["text"] == trace.manifest["vocabulary"].get(str(row["token"]))
        assert row["masked"] is bool(arrays["masked"][step, position])
        for name in ("column_sums", "column_sums_masked", "self_attention", "last_query"):
            assert np.float32(row[exporting.COLUMNS[name]]) == arrays[name][step, layer, head, position]
        for name in ("value_norms", "key_norms"):
            assert np.float32(row[exporting.COLUMNS[name]]) == arrays[name][step, layer, head // 2, position]
        for sink in range(SINKS):
            assert np.float32(row[f"sink_token_column_{sink}"]) == arrays["sink_token_columns"][step, layer, head, sink]
        assert np.float32(row["hidden_norm"]) == arrays["hidden_norms"][step, layer, position]


def test_parquet_gives_each_query_head_the_key_head_that_it_reads(steps, tmp_path):
    """Layer 1 has one key head for all query heads; the trace holds NaN in the others."""
    (step,) = make_steps(1, names=("tokens", "column_sums", "value_norms"))
    step["value_norms"][1, 1:] = np.nan
    trace = open_trace(write_trace(tmp_path / "run", [step]))
    rows = pyarrow.parquet.read_table(export_trace(trace, "parquet", tmp_path / "table")).to_pylist()
    found = [[row["value_norm"] for row in rows if (row["layer"], row["position"]) == (layer, 2)] for layer in (0, 1)]
    assert found[0] == np.repeat(step["value_norms"][0, :, 2], 2).tolist()
    assert found[1] == [step["value_norms"][1, 0, 2]] * HEADS


def test_nothing_is_overwritten_and_a_failure_leaves_nothing_behind(trace, tmp_path, monkeypatch):
    mine = tmp_path / "run.npz"
    mine.write_text("mine")
    with pytest.raises(CallError, match="is there already; choose another name"):
        export_trace(trace, "numpy", tmp_path / "run")
    assert mine.read_text() == "mine"

    def full(trace, path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(exporting._WRITERS, "numpy", full)
    with pytest.raises(OSError, match="No space left on device"):
        export_trace(trace, "numpy", tmp_path / "other")
    assert [*tmp_path.iterdir()] == [mine]


def test_exports_of_numbered_traces_appear_together(trace, tmp_path, monkeypatch, run):
    """One that was ended is made anew by the same command, beside what else is in the folder."""
    for name in ("000000", "000001"):
        shutil.copytree(trace.folder, tmp_path / "several" / name)
    export, out = exporting.export_trace, tmp_path / "o"

    def stop(one, *rest):
        if one.folder.name == "000001":
            raise KeyboardInterrupt
        return export(one, *rest)

    words = ["export", tmp_path / "several", "--out", out, "--to", "numpy"]
    out.mkdir()
    (out / "notes").touch()
    with monkeypatch.context() as ended:
        ended.setattr("sinkscope.traces.export_trace", stop)
        assert run(*words)[0] == 130 and [one.name for one in out.iterdir()] == ["notes"]
    status, printed, _ = run(*words, "--json")
    names = ["000000.npz", "000001.npz"]
    assert status == 0 and [one["out"] for one in json.loads(printed)["exports"]] == [str(out / name) for name in names]
    assert sorted(one.name for one in out.iterdir()) == [*names, "notes"]
    status, _, err = run(*words)
    assert status == 2 and f"{out}/000000.npz is there already; choose another folder or delete it" in err
