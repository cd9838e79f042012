"""Lengths of canvases that contradict the other tensors, under right checksums: refused, whatever reads them."""

import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sinkscope.checksums import with_checksum
from sinkscope.errors import TraceError
from sinkscope.traces import TraceWriter, open_trace

STEPS, WIDTH, PROMPT = 4, 9, 5
PATHS = ["model.layers.0.self_attn"]


def growing(first=WIDTH, top=False):
    """Steps of a canvas that grows from some tokens to WIDTH, and one step further by one each."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        length = min(WIDTH, first + step)
        columns = {"column_sums": rng.dirichlet(np.ones(length), (1, 2)).astype(np.float32) * length}
        if top:
            columns = {
                "top_column_sums": np.ones((1, 2, 2), np.float32),
                "top_column_sums_key": np.zeros((1, 2, 2), np.int32),
                "rest_column_sums": np.zeros((1, 2), np.float32),
            }
        yield {"tokens": np.arange(length, dtype=np.int32), "lengths": np.array(length, np.int32), **columns}


def write(folder, first=WIDTH, top=False, prompt_length=PROMPT):
    manifest = {
        "layers": PATHS,
        "heads": 2,
        "causal": False,
        "prompt_length": prompt_length,
        "vocabulary": {},
        "prompt": "p",
    }
    folder.mkdir()
    writer = TraceWriter(folder, manifest)
    for step in growing(first, top):
        writer.add(step)
    writer.close(complete=True)
    return folder


def forge(folder, change):
    """Change the lengths of a trace, and make its checksums those of what it then holds."""
    (path,) = folder.glob("steps-*")
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    change(arrays["lengths"])
    save_file(arrays, path, metadata)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["parts"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(with_checksum(manifest)))


def one(lengths):
    lengths[:] = 1


def beyond(lengths):
    lengths[:] = 100


def falling(lengths):
    lengths[:] = np.arange(STEPS)[::-1] + WIDTH - STEPS + 1


CHANGES = {
    one: "lengths: expected the longest to be the 9 positions of tokens, found 1",
    beyond: "lengths: expected the longest to be the 9 positions of tokens, found 100",
    falling: r"expected (-1|NaN) beyond the length of a canvas, found",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("top", [False, True])
def test_lengths_that_contradict_the_canvas_are_refused(tmp_path, change, top):
    forge(write(tmp_path / "t", top=top), change)
    with pytest.raises(TraceError, match=CHANGES[change]):
        open_trace(tmp_path / "t").tokens[:]
    if not top:
        with pytest.raises(TraceError, match=CHANGES[change]):
            open_trace(tmp_path / "t").column_sums[:]


@pytest.mark.parametrize(
    "command", [["sinks"], ["tracks"], ["analyse"], ["export", "--to", "numpy"], ["figures", "--only", "1"]], ids=str
)
def test_commands_refuse_them(tmp_path, run, command):
    forge(write(tmp_path / "t"), falling)
    out = ["--out", tmp_path / "out"] if command[0] in ("export", "figures") else []
    status, _, err = run(command[0], tmp_path / "t", *command[1:], *out)
    assert status == 1 and "beyond the length of a canvas" in err and "the trace is damaged" in err


def test_a_canvas_that_grows_is_read(tmp_path):
    trace = open_trace(write(tmp_path / "t", first=WIDTH - 2))
    assert trace.lengths[:].tolist() == [7, 8, 9, 9]
    assert np.isnan(trace.column_sums[0]).sum() == 2 * 2 and (trace.tokens[0] == -1).sum() == 2


def test_a_prompt_longer_than_every_canvas_is_refused(tmp_path):
    assert open_trace(write(tmp_path / "whole", prompt_length=WIDTH)).steps == STEPS
    with pytest.raises(
        TraceError, match="prompt_length: expected at most the 9 tokens of a canvas, found 10; the trace is damaged"
    ):
        open_trace(write(tmp_path / "t", prompt_length=WIDTH + 1)).tokens[:]
