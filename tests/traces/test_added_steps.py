"""Steps of one's own, given to a `TraceWriter`: they are copied, and checked before anything of them is on disk."""

import numpy as np
import pytest

from sinkscope.errors import CallError
from sinkscope.traces import TraceWriter, open_trace

SIZES = (2, 3, 7)
MANIFEST = {"layers": ["a", "b"], "heads": 3, "causal": False}


def make_step(number):
    canvas = {"tokens": np.full(7, number, np.int32), "lengths": np.asarray(7, np.int32)}
    return canvas | {"column_sums": np.full(SIZES, number / 4, np.float32)}


def parts_in(folder):
    return list(folder.glob("steps-*"))


def test_a_loop_may_fill_the_same_arrays_in_every_step(tmp_path):
    writer, buffers = TraceWriter(tmp_path, MANIFEST), make_step(0)
    for number in range(5):
        for name, array in make_step(number).items():
            buffers[name][...] = array
        writer.add(buffers)
    writer.close(complete=True)
    assert open_trace(tmp_path).tokens[:, 0].tolist() == list(range(5))
    assert open_trace(tmp_path).column_sums[:, 0, 0, 0].tolist() == [number / 4 for number in range(5)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column_sums": np.ones(SIZES)}, r"column_sums: expected float32, found float64; pass .astype\(np.float32\)"),
        ({"tokens": np.arange(7)}, r"tokens: expected int32, found int64; pass .astype\(np.int32\)"),
        ({"column_sums": np.ones(SIZES).tolist()}, "column_sums: expected an array of numbers, found list"),
        (
            {"column_sums": np.ones((6, 3, 7), np.float32)},
            r"column_sums: expected \[layer 2, head 3, key 7\], found \[6, 3, 7\]",
        ),
        ({"column_sums": np.full(SIZES, np.nan, np.float32)}, "column_sums: expected sums of attention, found nan"),
        ({"column_sums": np.full(SIZES, -1, np.float32)}, "column_sums: expected sums of attention, found -1.0"),
        (
            {"column_sums": np.full(SIZES, 2, np.float32)},
            "column_sums: expected columns of a head that add up to at most 7 queries, found 14",
        ),
        (
            {"norms": np.ones(7, np.float32)},
            "expected the tensors of the first, column_sums, lengths, tokens; found column_sums, lengths, norms",
        ),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_it_is_written(tmp_path, changes, message):
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.add(make_step(0))
    with pytest.raises(CallError, match=f"step: {message}"):
        writer.add(make_step(1) | changes)
    writer.close(complete=True)
    assert open_trace(tmp_path).column_sums.shape == (1, *SIZES)


def test_a_tensor_is_in_every_step_or_in_none(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    with pytest.raises(CallError, match=r"expected tensors of tokens, masked, .*; found norms"):
        writer.add({"norms": np.ones(7, np.float32)})
    writer.add(make_step(0))
    with pytest.raises(
        CallError, match="expected the tensors of the first, column_sums, lengths, tokens; found lengths, tokens"
    ):
        writer.add({name: array for name, array in make_step(1).items() if name != "column_sums"})


def test_a_closed_trace_takes_no_step(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.close(complete=True)
    with pytest.raises(CallError, match=r"expected no step behind close\(\), found one"):
        writer.add(make_step(0))
    assert parts_in(tmp_path) == []


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [
        ({"seed": float("nan")}, {}, "manifest: .*expected"),
        ({"prompt": "\ud800"}, {}, "manifest: expected values of JSON in UTF-8, found others"),
        ({"seed": object()}, {}, "manifest: expected"),
        ({}, {"complete": "yes"}, "complete: expected True or False, found 'yes'"),
        (
            {},
            {"parts": []},
            "parts: expected other fields of the manifest, as the writer counts these itself; leave it out",
        ),
        ({}, {"text": object()}, "manifest: .*text: expected"),
        (
            {"mask_id": 3},
            {},
            "step: masked: expected 1 where tokens has the mask token 3 of the manifest, and 0 elsewhere, found others",
        ),
    ],
)
def test_what_no_reader_would_take_is_not_written(begin, end, message, tmp_path):
    def write():
        writer = TraceWriter(tmp_path, MANIFEST | begin)
        writer.add(make_step(0) | {"masked": np.ones(7, np.uint8)})
        writer.close(**{"complete": True, **end})

    with pytest.raises(CallError, match=message):
        write()


def test_a_trace_is_closed_once(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.add(make_step(0))
    writer.close(complete=True)
    with pytest.raises(CallError, match="expected a trace that is open, found one that was closed before"):
        writer.close(complete=False)
    assert open_trace(tmp_path).complete


def test_a_trace_is_written_into_a_folder_that_there_is(tmp_path):
    (tmp_path / "file").touch()
    for name, found in (("nowhere", "none"), ("file", "a file")):
        with pytest.raises(CallError, match=f"{name}: expected an empty folder, found {found}; make it first"):
            TraceWriter(tmp_path / name, MANIFEST)


def test_a_trace_is_not_written_over_another(tmp_path):
    writer = TraceWriter(tmp_path, MANIFEST)
    writer.add(make_step(0))
    writer.close(complete=True)
    with pytest.raises(CallError, match="already holds a trace; choose another folder"):
        TraceWriter(tmp_path, MANIFEST)
    assert open_trace(tmp_path).steps == 1


def test_a_manifest_that_could_not_be_read_is_refused(tmp_path):
    with pytest.raises(CallError, match=r"manifest: .*causal: expected a value, found none"):
        TraceWriter(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    TraceWriter(tmp_path, MANIFEST)
    assert open_trace(tmp_path).steps == 0
