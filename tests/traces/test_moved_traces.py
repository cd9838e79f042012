"""What becomes of an open trace when its folder, or the current one, is another than it was."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from sinkscope.errors import TraceError
from sinkscope.traces import TraceWriter, open_trace

MANIFEST = {"layers": ["model.layers.0.self_attn"], "heads": 2, "causal": True}


def write(folder, seed=0, steps=3):
    folder.mkdir()
    rng = np.random.default_rng(seed)
    writer = TraceWriter(folder, MANIFEST)
    for _ in range(steps):
        writer.add({"column_sums": rng.random((1, 2, 4), np.float32), "lengths": np.asarray(4, np.int32)})
    writer.close(complete=True)
    return folder


@pytest.fixture(params=[False, True], ids=["before it is read", "after it was read"])
def trace(request, tmp_path):
    found = open_trace(write(tmp_path / "trace"))
    if request.param:
        found.column_sums[0]
    return found


def test_an_open_trace_is_read_from_another_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path / "trace").parent)
    trace = open_trace("trace")
    os.chdir(trace.place)
    assert trace.column_sums[0].shape == (1, 2, 4)
    assert (trace.folder, trace.place) == (Path("trace"), tmp_path / "trace")


def test_a_trace_that_was_moved_says_so(trace):
    trace.folder.rename(trace.folder.with_name("elsewhere"))
    for read in (trace.verify, lambda: trace.column_sums[0]):
        with pytest.raises(
            TraceError,
            match=r"trace: expected the trace that was opened there, found none; it was moved or deleted since",
        ):
            read()
    assert open_trace(trace.folder.with_name("elsewhere")).column_sums[0].shape == (1, 2, 4)


@pytest.mark.parametrize("steps", [3, 5])
def test_a_trace_that_was_replaced_says_so(trace, steps):
    shutil.rmtree(trace.folder)
    write(trace.folder, seed=1, steps=steps)
    for read in (trace.verify, lambda: trace.column_sums[0]):
        with pytest.raises(
            TraceError, match=r"trace: expected the trace that was opened there, found another one; it was replaced"
        ):
            read()


def test_a_trace_that_stayed_where_it_is_is_damaged(trace):
    part = trace.folder / "steps-000000.safetensors"
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes(content)
    with pytest.raises(TraceError, match="found others; the file was damaged or changed"):
        trace.verify()
    part.unlink()
    with pytest.raises(TraceError, match="the trace was damaged after it was written"):
        open_trace(trace.folder).column_sums  # noqa: B018
