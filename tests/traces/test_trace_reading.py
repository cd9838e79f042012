import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sinkscope.axes import TRACE_AXES
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import FORMAT, TraceWriter, open_trace, open_traces, part_files, writing

LAYERS, HEADS, KV_HEADS, FIRST_LENGTH, STEPS = 2, 5, 3, 4, 37
WIDER = ("written", "predicted", "confidence")  # as in autoregressive traces: one position beyond what was read
KEYS = ("top_column_sums_key", "top_last_query_key", "top_newest_columns_key")
DTYPES = {"masked": np.uint8} | dict.fromkeys(("tokens", "written", "predicted", "lengths", *KEYS), np.int32)
NOTHING = {"masked": 0, "lengths": 0} | dict.fromkeys(("tokens", "written", "predicted", *KEYS), -1)
PATHS = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
MANIFEST = {"layers": PATHS, "heads": HEADS, "causal": True, "vocabulary": {"7": " seven"}}


def make_step(rng, length):
    sizes = {"layer": LAYERS, "head": HEADS, "kv_head": KV_HEADS}
    step = {}
    for name, axes in TRACE_AXES.items():
        shape = [sizes.get(axis, length + (name in WIDER)) for axis in axes[1:]]
        most = 2 if name == "masked" else length if name in KEYS else 99
        step[name] = (
            rng.integers(0, most, shape).astype(DTYPES[name]) if name in DTYPES else rng.random(shape, np.float32)
        )
    for group in ("masked", "prompt"):
        step[f"column_sums_{group}"] *= step["column_sums"]
    return step | {"lengths": np.asarray(length, np.int32)}


def make_steps(count=STEPS, grow=1):
    rng = np.random.default_rng(0)
    return [make_step(rng, FIRST_LENGTH + grow * number) for number in range(count)]


def write_trace(folder, steps, manifest=MANIFEST):
    folder.mkdir(parents=True, exist_ok=True)
    writer = TraceWriter(folder, manifest)
    for step in steps:
        writer.add(step)
    writer.close(complete=True)
    return folder


def dense(steps, name):
    """Every step side by side, what is not there filled."""
    shapes = [step[name].shape for step in steps]
    whole = np.full((len(steps), *map(max, zip(*shapes, strict=True))), NOTHING.get(name, np.nan), steps[0][name].dtype)
    for number, step in enumerate(steps):
        whole[(number, *map(slice, step[name].shape))] = step[name]
    return whole


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest.pop("checksum")  # as in a trace of an earlier version
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def still_clock():
    """Parts are closed by their number of steps alone, however slow the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "time", SimpleNamespace(monotonic=lambda: 0.0))
        yield


@pytest.fixture(scope="module")
def steps():
    return make_steps()


@pytest.fixture(scope="module")
def trace(steps, tmp_path_factory):
    """37 steps in parts of 16, 16 and 5, whose canvas grows by one position a step."""
    return open_trace(write_trace(tmp_path_factory.mktemp("traces") / "grown", steps))


@pytest.mark.parametrize("name", TRACE_AXES)
def test_what_was_written_is_read_back_with_nothing_beyond_lengths(trace, steps, name):
    expected, array = dense(steps, name), getattr(trace, name)
    assert array.axes == TRACE_AXES[name]
    assert array.shape == expected.shape
    assert len(array) == STEPS
    assert array[:].dtype == expected.dtype
    np.testing.assert_array_equal(array[:], expected)
    np.testing.assert_array_equal(np.asarray(array), expected)


def test_beyond_lengths_tokens_are_minus_one_and_measures_are_nan(trace):
    beyond = np.arange(trace.tokens.shape[1]) >= trace.lengths[:][:, None]
    assert beyond.sum() == sum(range(STEPS))
    assert (trace.tokens[:][beyond] == -1).all()
    assert (trace.masked[:][beyond] == 0).all()
    sums = trace.column_sums[:]
    assert (np.isnan(sums).any(axis=(1, 2)) == beyond).all()
    assert (np.isnan(sums).all(axis=(1, 2)) == beyond).all()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_basic_indexing_is_numpys(trace, steps, data):
    name = data.draw(
        st.sampled_from(["column_sums", "hidden_norms", "value_norms", "tokens", "masked", "confidence", "lengths"])
    )
    array, loaded = getattr(trace, name), dense(steps, name)
    index = data.draw(basic_indices(array.shape, allow_newaxis=False, allow_ellipsis=True))
    found, expected = array[index], loaded[index]
    assert np.shape(found) == np.shape(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_negative_indices_count_from_the_end(trace, steps):
    sums = dense(steps, "column_sums")
    np.testing.assert_array_equal(trace.column_sums[-1, -2, -3, -4], sums[-1, -2, -3, -4])
    np.testing.assert_array_equal(trace.column_sums[-STEPS], sums[0])
    np.testing.assert_array_equal(trace.column_sums[-20:-10, np.int64(-1)], sums[-20:-10, -1])


def test_a_slice_of_no_steps_keeps_the_other_axes_and_the_dtype(trace):
    assert trace.tokens[3:3].dtype == np.int32
    assert trace.masked[40:50].dtype == np.uint8
    assert trace.column_sums[5:5, :, 1].shape == (0, LAYERS, trace.column_sums.shape[3])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((STEPS,), f"step {STEPS} is out of range: column_sums has {STEPS}"),
        ((-STEPS - 1,), f"step {-STEPS - 1} is out of range: column_sums has {STEPS}"),
        ((0, LAYERS), f"layer {LAYERS} is out of range: column_sums has {LAYERS}"),
        ((0, 0, -HEADS - 1), f"head {-HEADS - 1} is out of range: column_sums has {HEADS}"),
        ((slice(None), 0, 0, 40), "key 40 is out of range: column_sums has 40"),
        ((0, 0, 0, 0, 0), "column_sums has axes step, layer, head, key; found 5 indices"),
        (([0, 1],), "column_sums takes whole numbers and slices"),
        ((0, np.array([0, 1])), "column_sums takes whole numbers and slices"),
    ],
)
def test_an_index_that_does_not_fit_is_named(trace, index, message):
    with pytest.raises(IndexError) as caught:
        trace.column_sums[index]
    assert message in str(caught.value)


@pytest.fixture
def touched(monkeypatch):
    """Names of the parts that were opened, and how many numbers each read took off the disk."""
    opened, read, real = [], [], part_files.safe_open

    class Slice:
        def __init__(self, inner):
            self.inner, self.get_shape, self.get_dtype = inner, inner.get_shape, inner.get_dtype

        def __getitem__(self, index):
            found = self.inner[index]
            read.append(found.size)
            return found

    class File:
        def __init__(self, path, framework):
            opened.append(path.name)
            self.context = real(path, framework=framework)

        def __enter__(self):
            self.inner = self.context.__enter__()
            return self

        def __exit__(self, *error):
            return self.context.__exit__(*error)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def get_slice(self, name):
            return Slice(self.inner.get_slice(name))

    monkeypatch.setattr(part_files, "safe_open", File)
    return SimpleNamespace(opened=opened, read=read)


def test_opening_reads_no_part_and_indexing_opens_only_those_it_touches(trace, touched):
    fresh = open_trace(trace.folder)
    assert touched.opened == []
    assert fresh.steps == STEPS
    assert touched.opened == [f"steps-{number:06d}.safetensors" for number in range(3)]
    assert touched.read == []  # only headers so far
    touched.opened.clear()
    fresh.column_sums[20]
    assert touched.opened == ["steps-000001.safetensors"]
    fresh.tokens[30:33, 2]
    assert touched.opened[1:] == ["steps-000001.safetensors", "steps-000002.safetensors"]
    fresh.tokens[5:5]
    assert len(touched.opened) == 3


def test_of_a_part_only_the_asked_steps_layers_and_heads_are_read(trace, touched):
    keys = FIRST_LENGTH + 31  # the widest canvas of the second part
    trace.column_sums[20, 1, 3]
    trace.column_sums[17:20, :, -1]
    assert touched.read == [keys, 3 * LAYERS * keys]


def test_a_trace_says_what_it_is(trace):
    assert trace.complete
    assert trace.causal
    assert trace.steps == STEPS
    assert trace.layers == tuple(PATHS)
    assert trace.heads == HEADS
    assert trace.tensors == tuple(TRACE_AXES)
    assert repr(trace) == f"Trace({trace.folder}, {STEPS} steps, {LAYERS} layers, {HEADS} heads)"
    assert (
        repr(trace.value_norms)
        == f"TraceArray(value_norms, step {STEPS} × layer {LAYERS} × kv_head {KV_HEADS} × position 40)"
    )
    assert list(trace.step_parts()) == [(0, 16), (16, 32), (32, 37)]


def test_tokens_read_as_text_where_the_manifest_knows_them(trace):
    assert trace.token_text(np.int32(7)) == " seven"
    assert trace.token_text(8) == "<8>"


def test_dir_lists_the_tensors_this_trace_has(trace, tmp_path):
    assert set(TRACE_AXES) - set(dir(trace)) <= {name for name in TRACE_AXES if name not in trace.tensors}
    assert {"tokens", "column_sums", "manifest", "steps", "verify", "token_text"} <= set(dir(trace))
    bare = [{name: step[name] for name in ("tokens", "lengths")} for step in make_steps(2)]
    found = dir(open_trace(write_trace(tmp_path / "bare", bare)))
    assert {"tokens", "lengths", "manifest"} <= set(found) and "column_sums" not in found
    (tmp_path / "bare" / "steps-000000.safetensors").write_bytes(b"damaged")
    assert "manifest" in dir(open_trace(tmp_path / "bare"))


def test_a_tensor_adds_itself_up_and_says_how_to_do_anything_else(trace, steps):
    whole = dense(steps, "value_norms")
    np.testing.assert_array_equal(trace.value_norms.max(-1), whole.max(-1))
    np.testing.assert_array_equal(trace.tokens.mean(axis=0), dense(steps, "tokens").mean(axis=0))
    assert (trace.value_norms.ndim, trace.value_norms.size) == (whole.ndim, whole.size)
    assert "mean" in dir(trace.tokens)
    with pytest.raises(AttributeError, match="load the tensor first"):
        _ = trace.tokens.reshape
    with pytest.raises(TypeError, match="load it first"):
        _ = trace.tokens == 1


def test_a_tensor_the_trace_does_not_hold_is_refused_with_what_it_holds(tmp_path):
    bare = [{name: step[name] for name in ("tokens", "lengths")} for step in make_steps(2)]
    trace = open_trace(write_trace(tmp_path / "bare", bare))
    with pytest.raises(TraceError, match="holds no column_sums; it holds tokens, lengths"):
        _ = trace.column_sums
    assert not hasattr(trace, "column_sums") and hasattr(trace, "tokens")


def test_a_trace_without_a_whole_step_says_so(tmp_path):
    TraceWriter(tmp_path, MANIFEST)
    trace = open_trace(tmp_path)
    assert (trace.steps, trace.complete) == (0, False)
    assert "incomplete" in repr(trace)
    with pytest.raises(TraceError, match="holds no tokens; it holds no whole step"):
        _ = trace.tokens


# What a kill leaves behind


@pytest.mark.parametrize("listed", [1, 0])
def test_after_a_kill_every_whole_part_is_read_whether_it_is_listed_or_not(tmp_path, steps, listed):
    writer = TraceWriter(tmp_path, MANIFEST)
    for step in steps[:20]:
        writer.add(step)
    if not listed:  # the kill came between the part and the manifest
        edit_manifest(tmp_path, lambda manifest: manifest.update(parts=[], steps=0))
    trace = open_trace(tmp_path)
    assert len(trace.manifest["parts"]) == listed
    assert not trace.complete
    assert trace.steps == 16
    np.testing.assert_array_equal(trace.column_sums[:], dense(steps[:16], "column_sums"))


def test_a_half_written_part_is_ignored(tmp_path, steps):
    write_trace(tmp_path, steps[:16])
    content = (tmp_path / "steps-000000.safetensors").read_bytes()
    (tmp_path / "steps-000001.safetensors.writing").write_bytes(content[: len(content) // 2])
    trace = open_trace(tmp_path)
    assert trace.steps == 16
    np.testing.assert_array_equal(trace.tokens[:], dense(steps[:16], "tokens"))


# Damage


@pytest.fixture
def damaged(tmp_path):
    """A whole trace of three parts, to be damaged."""
    return write_trace(tmp_path / "damaged", make_steps(grow=0))


def test_a_part_behind_a_complete_trace_is_refused(tmp_path):
    write_trace(tmp_path / "one", make_steps(3))
    write_trace(tmp_path / "other", make_steps(6))
    with safe_open(tmp_path / "other" / "steps-000000.safetensors", "np") as file:
        metadata = file.metadata() | {"first_step": "3"}
    save_file(
        load_file(tmp_path / "other" / "steps-000000.safetensors"),
        tmp_path / "one" / "steps-000001.safetensors",
        metadata,
    )
    with pytest.raises(TraceError, match=r"steps-000001\.safetensors is not listed in its manifest"):
        _ = open_trace(tmp_path / "one").parts


def test_a_complete_trace_has_the_steps_that_its_manifest_says(tmp_path):
    write_trace(tmp_path / "one", make_steps(3))
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    del manifest["checksum"]
    (tmp_path / "one" / "manifest.json").write_text(json.dumps(manifest | {"steps": 19}))
    with pytest.raises(TraceError, match="expected 19 steps, as its manifest says, found 3"):
        _ = open_trace(tmp_path / "one").parts


def test_a_listed_part_that_is_missing_is_refused(damaged):
    (damaged / "steps-000002.safetensors").unlink()
    with pytest.raises(TraceError, match=r"expected steps-000002\.safetensors, which its manifest lists, found none"):
        _ = open_trace(damaged).steps


def test_a_gap_between_unlisted_parts_is_refused(damaged):
    edit_manifest(damaged, lambda manifest: manifest.update(parts=[], complete=False))
    (damaged / "steps-000001.safetensors").unlink()
    with pytest.raises(TraceError, match="expected 5 steps from 16 on, found 5 from 32 on; a part is missing"):
        _ = open_trace(damaged).steps


@pytest.mark.parametrize(
    "content", [lambda whole: whole[:-100], lambda whole: whole[:3], lambda whole: b"", lambda whole: b"?" * 500]
)
def test_a_damaged_part_is_refused(damaged, content):
    path = damaged / "steps-000001.safetensors"
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(TraceError, match=r"steps-000001\.safetensors: .*the trace is damaged"):
        _ = open_trace(damaged).steps


@pytest.mark.parametrize("metadata", [None, {"first_step": "0"}])
def test_a_safetensors_file_that_is_no_part_is_refused(damaged, metadata):
    path = damaged / "steps-000000.safetensors"
    save_file(load_file(path), path, metadata)
    with pytest.raises(TraceError, match="expected a part of a trace with first_step and steps"):
        _ = open_trace(damaged).steps


@pytest.mark.parametrize("version", [FORMAT + 1, None])
def test_another_format_version_is_refused_by_name(damaged, version):
    edit_manifest(damaged, lambda manifest: manifest.update(format=version))
    with pytest.raises(TraceError) as caught:
        open_trace(damaged)
    assert f"expected a trace of format {FORMAT}, found {version}; read it with" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "comp', b"\xff\xfe\x00", b"[1]"])
def test_a_manifest_that_cannot_be_read_is_refused(damaged, content):
    (damaged / "manifest.json").write_bytes(content)
    with pytest.raises(TraceError, match=r"manifest\.json"):
        open_trace(damaged)


@pytest.mark.parametrize("key", ["complete", "parts", "layers", "heads", "causal"])
def test_a_manifest_that_lacks_what_every_trace_has_is_refused(damaged, key):
    edit_manifest(damaged, lambda manifest: manifest.pop(key))
    with pytest.raises(TraceError, match=rf"manifest\.json: {key}: Field required"):
        open_trace(damaged)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"no trace at .*nowhere: the folder does not exist"):
        open_trace(tmp_path / "nowhere")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a trace")
    for opening in (open_trace, open_traces):
        with pytest.raises(TraceError, match=r"no trace at .*: expected manifest\.json in it"):
            opening(tmp_path)


def test_what_stands_where_a_trace_should_is_named(damaged, tmp_path):
    (tmp_path / "file").write_text("not a trace")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for path, message in {
        tmp_path / "file": r"expected a folder with manifest\.json, found a file$",
        damaged / "manifest.json": rf"expected a folder with manifest\.json, found a file; pass its folder, {damaged}$",
        damaged / "steps-000000.safetensors": f"found a file; pass its folder, {damaged}$",
        tmp_path / "model": r"expected manifest\.json in it, found none; `sinkscope trace MODEL --out FOLDER` makes",
    }.items():
        with pytest.raises(TraceError, match=message):
            open_trace(path)


def test_what_a_training_showed_is_no_trace_of_another_version(damaged):
    edit_manifest(damaged, lambda manifest: manifest.update(format="sinkscope emergence 1"))
    with pytest.raises(
        TraceError, match=f"found what a training showed of its sinks; `sinkscope watch-training {damaged}` shows it"
    ):
        open_trace(damaged)


# Several traces in a folder


def test_numbered_traces_are_opened_in_order(tmp_path):
    for number in (2, 0, 11, 1):
        write_trace(tmp_path / f"{number:06d}", make_steps(number + 1))
    traces = open_traces(tmp_path)
    assert [trace.folder.name for trace in traces] == ["000000", "000001", "000002", "000011"]
    assert [trace.steps for trace in traces] == [1, 2, 3, 12]


def test_one_of_several_must_be_named(tmp_path):
    for number in range(3):
        write_trace(tmp_path / f"{number:06d}", make_steps(1))
    with pytest.raises(CallError, match=r"holds 3 traces; open one of them, such as .*000000, or use open_traces"):
        open_trace(tmp_path)
    assert open_trace(tmp_path / "000002").steps == 1


def test_a_folder_of_one_numbered_trace_opens_as_that_trace(tmp_path):
    write_trace(tmp_path / "000000", make_steps(3))
    assert open_trace(str(tmp_path)).steps == 3
    assert [trace.steps for trace in open_traces(tmp_path)] == [3]


def test_parts_are_opened_lazily_for_each_of_several(tmp_path, touched):
    for number in range(2):
        write_trace(tmp_path / f"{number:06d}", make_steps(2))
    traces = open_traces(tmp_path)
    assert touched.opened == []
    assert list(itertools.chain.from_iterable(trace.step_parts() for trace in traces)) == [(0, 2), (0, 2)]
    assert len(touched.opened) == 2


def test_verify_sees_a_flipped_byte(tmp_path):
    trace = open_trace(write_trace(tmp_path / "trace", make_steps(3)))
    trace.verify()
    part = trace.folder / "steps-000000.safetensors"
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(content)
    with pytest.raises(TraceError, match=r"steps-000000\.safetensors: expected the bytes whose sha256"):
        trace.verify()


@pytest.mark.parametrize("read", [open_traces, open_trace])
def test_a_numbered_trace_without_its_manifest_is_refused_by_name(tmp_path, read):
    for number in range(3):
        write_trace(tmp_path / f"{number:06d}", make_steps(1))
    (tmp_path / "000001" / "manifest.json").unlink()
    with pytest.raises(TraceError, match=r"000001: expected manifest\.json, as in the other 2"):
        read(tmp_path)


def test_numbered_traces_are_read_beside_a_numbered_folder_that_no_recording_wrote(tmp_path):
    """`export --out FOLDER/000002` may have made it."""
    for number in range(2):
        write_trace(tmp_path / f"{number:06d}", make_steps(1))
    (tmp_path / "000002").mkdir()
    (tmp_path / "000002" / "000000.parquet").write_bytes(b"PAR1")
    assert [trace.folder.name for trace in open_traces(tmp_path)] == ["000000", "000001"]


def test_only_numbers_name_numbered_traces(tmp_path):
    for name in ("000000", "000000-backup", "0001.old", "000002"):
        write_trace(tmp_path / name, make_steps(1))
    (tmp_path / "000003").mkdir()
    assert [trace.folder.name for trace in open_traces(tmp_path)] == ["000000", "000002"]


def test_a_trace_that_was_replaced_since_it_was_opened_is_refused(tmp_path):
    trace = open_trace(write_trace(tmp_path / "trace", make_steps(3)))
    assert trace.steps == 3
    (tmp_path / "trace").rename(tmp_path / "away")
    with pytest.raises(TraceError, match=r"moved since it was opened|cannot be read"):
        _ = trace.tokens[0]
    write_trace(tmp_path / "trace", make_steps(4)[1:])
    with pytest.raises(TraceError, match="expected the bytes whose sha256 its manifest gives"):
        _ = trace.tokens[0]
