import hashlib
import json

import numpy as np
import pytest
from grown_traces import (
    FIRST_LENGTH,
    HEADS,
    LAYERS,
    MANIFEST,
    PATHS,
    STEPS,
    dense,
    edit_manifest,
    make_steps,
    write_trace,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from safetensors import safe_open
from safetensors.numpy import load_file, save, save_file

from sinkscope.axes import TRACE_AXES
from sinkscope.errors import CallError, TraceError
from sinkscope.traces import TraceWriter, format, open_trace, open_traces


@pytest.fixture(scope="module")
def steps():
    return make_steps()


@pytest.fixture(scope="module")
def trace(steps, tmp_path_factory):
    """37 steps in parts of 16, 16 and 5, whose canvas grows by one position a step."""
    return open_trace(write_trace(tmp_path_factory.mktemp("traces") / "grown", steps))


def test_a_written_trace_is_read_back_with_nothing_beyond_lengths(trace, steps):
    for name in TRACE_AXES:
        expected, array = dense(steps, name), getattr(trace, name)
        assert (array.axes, array.shape, array.dtype) == (TRACE_AXES[name], expected.shape, expected.dtype)
        np.testing.assert_array_equal(np.asarray(array), expected)
    beyond = np.arange(trace.tokens.shape[1]) >= trace.lengths[:][:, None]
    assert (trace.tokens[:][beyond] == -1).all() and (trace.masked[:][beyond] == 0).all()
    assert (np.isnan(trace.column_sums[:]).all(axis=(1, 2)) == beyond).all()


def taken_apart(content):
    """Header and data of a safetensors file; the order of metadata is by chance there."""
    size = int.from_bytes(content[:8], "little")
    return size, json.loads(content[8 : 8 + size]), content[8 + size :]


def test_a_part_is_the_file_that_safetensors_makes(tmp_path):
    steps, metadata = make_steps(3), {"first_step": "0", "steps": "3"}
    for step in steps:  # not contiguous, as a padded row is not
        step["value_norms"] = np.ascontiguousarray(step["value_norms"].T).T
    checksum = format.write_part(tmp_path / "part", steps, metadata, MANIFEST)
    content = (tmp_path / "part").read_bytes()
    assert taken_apart(content) == taken_apart(save({name: dense(steps, name) for name in steps[0]}, metadata))
    assert checksum == hashlib.sha256(content).hexdigest()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_basic_indexing_is_numpys(trace, steps, data):
    name = data.draw(
        st.sampled_from(["column_sums", "hidden_norms", "value_norms", "tokens", "masked", "confidence", "lengths"])
    )
    array, loaded = getattr(trace, name), dense(steps, name)
    index = data.draw(basic_indices(array.shape, allow_newaxis=False, allow_ellipsis=True))
    found, expected = array[index], loaded[index]
    assert np.shape(found) == np.shape(expected) and found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_indexing_reads_only_the_parts_steps_layers_and_heads_it_asks_for(trace, monkeypatch):
    fresh, read, real = open_trace(trace.folder), [], format.Part.read

    def reading(part, name, index):
        found = real(part, name, index)
        read.append((part.path.name, found.size))
        return found

    monkeypatch.setattr(format.Part, "read", reading)
    fresh.column_sums[20, 1, 3]
    fresh.column_sums[17:20, :, -1]
    keys = FIRST_LENGTH + 31  # the widest canvas of the second part
    assert read == [("steps-000001.safetensors", keys), ("steps-000001.safetensors", 3 * LAYERS * keys)]


def test_a_trace_says_what_it_is(trace):
    assert trace.complete and trace.causal
    assert (trace.steps, trace.layers, trace.heads) == (STEPS, tuple(PATHS), HEADS)
    assert trace.tensors == tuple(TRACE_AXES)
    assert repr(trace) == f"Trace({trace.folder}, {STEPS} steps, {LAYERS} layers, {HEADS} heads)"
    assert repr(trace.tokens) == f"TraceArray(tokens, step {STEPS} × position 40)"
    assert list(trace.step_parts()) == [(0, 16), (16, 32), (32, 37)]
    assert (trace.token_text(np.int32(7)), trace.token_text(99)) == ("Ċ漢", "<99>")


def test_a_tensor_the_trace_does_not_hold_is_refused_with_what_it_holds(tmp_path):
    trace = open_trace(write_trace(tmp_path / "bare", make_steps(2, names=("tokens",))))
    with pytest.raises(TraceError, match="holds no column_sums; it holds tokens, lengths"):
        _ = trace.column_sums
    assert not hasattr(trace, "column_sums") and hasattr(trace, "tokens")
    assert "tokens" in dir(trace) and "column_sums" not in dir(trace)


def test_after_a_kill_every_whole_part_is_read_though_it_is_not_listed(tmp_path, steps):
    writer = TraceWriter(tmp_path, MANIFEST)
    for step in steps[:16]:
        writer.add(step)
    writer.flush()
    (tmp_path / "steps-000001.safetensors.writing").write_bytes(b"half of it")
    edit_manifest(tmp_path, parts=[], steps=0)  # the kill came between the part and the manifest
    trace = open_trace(tmp_path)
    assert (trace.complete, trace.steps) == (False, 16)
    np.testing.assert_array_equal(trace.column_sums[:], dense(steps[:16], "column_sums"))


@pytest.fixture
def damaged(tmp_path):
    """A whole trace of three parts, to be damaged."""
    return write_trace(tmp_path / "damaged", make_steps(grow=0, names=("tokens", "column_sums")))


def extra_part(folder):
    with safe_open(folder / "steps-000000.safetensors", "np") as file:
        metadata = file.metadata() | {"first_step": str(STEPS)}
    save_file(load_file(folder / "steps-000000.safetensors"), folder / "steps-000003.safetensors", metadata)


def gap(folder):
    edit_manifest(folder, parts=[], complete=False)
    (folder / "steps-000001.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (extra_part, r"parts that its manifest lists, steps-000003\.safetensors is there as well"),
        (gap, "expected 5 steps from 16 on, .*, found 5 from 32 on; a part is missing"),
        (lambda folder: (folder / "steps-000002.safetensors").unlink(), r"steps-000002\.safetensors is missing"),
        (lambda folder: edit_manifest(folder, format=2), "expected a trace of format 1, found 2; read it with"),
        (lambda folder: (folder / "manifest.json").write_bytes(b'{"format": 1, "comp'), r"manifest\.json"),
    ],
)
def test_a_damaged_trace_is_refused(damaged, damage, message):
    open_trace(damaged).verify()
    damage(damaged)
    with pytest.raises(TraceError, match=message):
        open_trace(damaged).verify()


def test_a_trace_that_was_replaced_since_it_was_opened_is_refused(damaged):
    trace = open_trace(damaged)
    assert trace.steps == STEPS
    damaged.rename(damaged.parent / "away")
    write_trace(damaged, make_steps(4)[1:])
    with pytest.raises(TraceError, match="expected the bytes whose sha256 its manifest gives"):
        _ = trace.tokens[0]


def test_numbered_traces_are_opened_in_order(tmp_path):
    for name in ("000002", "000000", "000011", "000000-backup"):
        write_trace(tmp_path / name, make_steps(1))
    (tmp_path / "000003").mkdir()  # such as `export --out FOLDER/000003` makes
    (tmp_path / "000003" / "000000.parquet").write_bytes(b"PAR1")
    assert [trace.folder.name for trace in open_traces(tmp_path)] == ["000000", "000002", "000011"]
    with pytest.raises(CallError, match=r"holds 3 traces; open one of them, such as .*000000, or use open_traces"):
        open_trace(tmp_path)


def test_numbered_traces_are_neither_mixed_with_another_nor_without_a_manifest(tmp_path):
    for number in range(3):
        write_trace(tmp_path / f"{number:06d}", make_steps(1))
    manifest = tmp_path / "000001" / "manifest.json"
    (tmp_path / "manifest.json").write_bytes(manifest.read_bytes())
    with pytest.raises(TraceError, match=r"expected one trace or numbered ones, found both \(000000\)"):
        open_traces(tmp_path)
    (tmp_path / "manifest.json").unlink()
    manifest.unlink()
    with pytest.raises(TraceError, match=r"000001: expected manifest\.json, as in the other 2"):
        open_trace(tmp_path)
