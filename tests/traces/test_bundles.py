"""Bundles: a trace to share, its precision and provenance, and files that were changed."""

import json
import shutil

import numpy as np
import pytest

import sinkscope
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import with_checksum
from sinkscope.sinks import find_sinks
from sinkscope.traces import open_bundle, open_trace, write_bundle
from sinkscope.traces.bundles import BUNDLE
from sinkscope.traces.stored_maps import store_map, stored_map


@pytest.fixture(scope="module")
def folder(diffusion_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "run.trace"
    model = sinkscope.load(str(diffusion_folder))
    with sinkscope.recording(model, out=folder):
        sinkscope.generate(model, [5, 6, 7, 8, 9], length=8, block=4, steps=8)
    return folder


def values(trace):
    return {name: np.asarray(getattr(trace, name)[:]) for name in trace.tensors}


def test_a_bundle_of_a_rounded_bundle_says_how_far_it_is_off(folder, tmp_path):
    rounded = write_bundle(open_trace(folder), tmp_path / "rounded", precision="float16")
    again = write_bundle(open_trace(rounded), tmp_path / "again", precision="float32")
    errors = [json.loads((one / BUNDLE).read_text())["largest_error"] for one in (rounded, again)]
    assert errors[0] == errors[1] and errors[0]["column_sums"] > 0
    card = (again / "README.md").read_text()
    assert "| values | float32, rounded by at most" in card and "| family | llada |" in card


def test_half_precision_is_read_as_float32_and_says_how_far_it_is_off(folder, tmp_path):
    trace = open_trace(folder)
    bundle = open_bundle(write_bundle(trace, tmp_path / "b", precision="float16"))
    found, expected = values(bundle), values(trace)
    errors = json.loads((tmp_path / "b" / BUNDLE).read_text())["largest_error"]
    for name in found:
        assert found[name].dtype == expected[name].dtype == getattr(bundle, name).dtype
        if found[name].dtype != np.float32:
            assert np.array_equal(found[name], expected[name])
            continue
        off = np.abs(found[name] - expected[name])
        assert (np.isnan(found[name]) == np.isnan(expected[name])).all()
        assert not (off > np.maximum(5e-4 * np.abs(expected[name]), 3e-8)).any()  # as docs/exports.md says
        assert errors[name] == pytest.approx(float(np.nanmax(np.abs(found[name] - expected[name]))), abs=1e-9)
    assert errors["column_sums"] > 0
    assert abs(len(find_sinks(bundle)) - len(find_sinks(trace))) <= 0.01 * len(find_sinks(trace))


def another_name(folder):
    about = json.loads((folder / BUNDLE).read_text())
    about["files"]["../../etc/passwd"] = "0" * 64
    (folder / BUNDLE).write_text(json.dumps(with_checksum(about)))


def unlist(name):
    def change(folder):
        about = json.loads((folder / BUNDLE).read_text())
        del about["files"][name]
        (folder / BUNDLE).write_text(json.dumps(with_checksum(about)))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "README.md").write_text("x"), "README.md: expected the bytes .* gives, found others"),
        (lambda folder: (folder / "page.html").unlink(), "page.html: expected the bytes .*, found no file"),
        (lambda folder: (folder / BUNDLE).unlink(), "bundle.json: cannot be read .*`sinkscope bundle`"),
        (another_name, "bundle.json: files"),
        (unlist("manifest.json"), "expected the files that bundle.json lists, found manifest.json as well"),
    ],
)
def test_a_bundle_that_was_changed_is_refused(folder, tmp_path, change, message):
    write_bundle(open_trace(folder), tmp_path / "b", page="<p>a page of some length</p>")
    change(tmp_path / "b")
    with pytest.raises(TraceError, match=message):
        open_bundle(tmp_path / "b")


def test_a_value_beyond_half_precision_is_refused(folder, tmp_path, monkeypatch):
    trace = open_trace(folder)
    from sinkscope.traces.format import Part

    whole = Part.read
    monkeypatch.setattr(
        Part, "read", lambda self, name, at: whole(self, name, at) * (1e6 if name == "key_norms" else 1)
    )
    with pytest.raises(CallError, match=r"key_norms of step 0 holds .*, too large for float16"):
        write_bundle(trace, tmp_path / "b", precision="float16")
    assert not (tmp_path / "b").exists()


def test_the_command(folder, tmp_path, run):
    status, out, err = run("bundle", folder, "--out", tmp_path / "b", "--precision", "float16")
    assert (status, out.strip(), err) == (0, str(tmp_path / "b"), "")
    assert "<html" in (tmp_path / "b" / "page.html").read_text()
    assert run("bundle", tmp_path / "b", "--check")[::2] == (0, "")
    (tmp_path / "b" / "mine.txt").write_text("x")
    status, _, err = run("bundle", tmp_path / "b", "--check")
    assert status == 0 and "not part of the bundle and not compared: mine.txt" in err
    assert run("sinks", tmp_path / "b")[0] == 0
    status, _, err = run("bundle", folder, "--out", tmp_path / "b")
    assert status == 2 and "expected a new or empty folder for the bundle, found something there (README.md)" in err


def test_stored_maps_travel_with_the_trace(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "t")
    trace = open_trace(tmp_path / "t")
    length = int(trace.lengths[1])
    attention = np.diag(trace.self_attention[1, 0, 1, :length]) * 0 + trace.column_sums[1, 0, 1, :length] / length
    store_map(trace, 1, 0, 1, attention.astype(np.float32))
    bundle = open_bundle(write_bundle(trace, tmp_path / "b", precision="float16"))
    assert bundle.manifest["maps"] == [[1, 0, 1]]
    np.testing.assert_array_equal(stored_map(bundle, 1, 0, 1), stored_map(trace, 1, 0, 1))
    (tmp_path / "t" / "map-000001-000-001.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        write_bundle(open_trace(tmp_path / "t"), tmp_path / "c")
