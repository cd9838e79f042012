"""A part goes to the disk piece by piece: the same file as safetensors makes of the stacked steps, without a second
copy.
"""

import errno
import hashlib
import json
import os
import threading
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from sinkscope.errors import TraceError
from sinkscope.traces import open_trace, part_files
from sinkscope.traces.part_files import write_part

LAYERS, HEADS, KV_HEADS = 2, 3, 4
METADATA = {"first_step": "0", "steps": "3"}


def make_step(number, length):
    random = np.random.default_rng(number)
    return {
        "tokens": random.integers(0, 90, length, dtype=np.int32),
        "masked": random.integers(0, 2, length, dtype=np.uint8),
        "lengths": np.asarray(length, np.int32),
        "column_sums": random.random((LAYERS, HEADS, length), np.float32),
        "value_norms": random.random(
            (length, KV_HEADS, LAYERS), np.float32
        ).T,  # not contiguous, as a padded row is not
        "confidence": np.zeros(0, np.float32),
    }


def stacked(steps):
    """What a part holds, the short way."""
    width = max(len(step["tokens"]) for step in steps)
    nothing = {"tokens": -1, "masked": 0}
    found = {}
    for name in steps[0]:
        arrays = [step[name] for step in steps]
        if name not in ("lengths", "confidence"):
            rooms = [[(0, 0)] * (one.ndim - 1) + [(0, width - one.shape[-1])] for one in arrays]
            arrays = [
                np.pad(one, room, constant_values=nothing.get(name, np.nan))
                for one, room in zip(arrays, rooms, strict=True)
            ]
        found[name] = np.ascontiguousarray(np.stack(arrays))
    return found


def taken_apart(content):
    """Header and data of a safetensors file; the order of metadata is by chance there."""
    size = int.from_bytes(content[:8], "little")
    return size, json.loads(content[8 : 8 + size]), content[8 + size :]


@pytest.mark.parametrize("lengths", [(5, 5, 5), (5, 7, 6)], ids=["as wide", "growing"])
@pytest.mark.parametrize(
    ("whole", "aside"), [(1 << 16, 1 << 20), (0, 1 << 20), (0, 0)], ids=["small", "by steps", "hashed aside"]
)
def test_a_part_is_the_file_that_safetensors_makes(lengths, whole, aside, tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "WHOLE", whole)
    monkeypatch.setattr(part_files, "ASIDE", aside)
    steps = [make_step(number, length) for number, length in enumerate(lengths)]
    checksum = write_part(tmp_path / "part", steps, METADATA)
    content = (tmp_path / "part").read_bytes()
    assert taken_apart(content) == taken_apart(save(stacked(steps), METADATA))
    assert checksum == hashlib.sha256(content).hexdigest()
    for name, expected in stacked(steps).items():
        assert np.array_equal(load_file(tmp_path / "part")[name], expected, equal_nan=expected.dtype == np.float32), (
            name
        )
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sinkscope hash")]


def test_a_trace_whose_parts_safetensors_wrote_reads_as_before(tmp_path):
    """Parts of 16 steps, stacked and saved whole, as they were written until this was."""
    steps = [make_step(number, 6) for number in range(16)]
    for step in steps:
        del step["confidence"]
    content = save(stacked(steps), {"first_step": "0", "steps": "16"})
    (tmp_path / "steps-000000.safetensors").write_bytes(content)
    listed = {
        "file": "steps-000000.safetensors",
        "first_step": 0,
        "steps": 16,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    manifest = {
        "format": 1,
        "complete": True,
        "layers": ["a", "b"],
        "heads": HEADS,
        "causal": False,
        "steps": 16,
        "parts": [listed],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    trace = open_trace(tmp_path)
    trace.verify()
    assert np.array_equal(trace.column_sums[:, 1], np.stack([step["column_sums"][1] for step in steps]))


@pytest.mark.parametrize(
    ("lengths", "copies"), [((50_000,) * 8, 0.1), ((50_000,) * 7 + (50_001,), 2.5)], ids=["as wide", "growing"]
)
def test_writing_takes_no_copy_of_the_part(lengths, copies, tmp_path):
    """Nothing where steps are as wide; where they grew one at a time, and the one being hashed."""
    steps = [{"column_sums": np.ones((LAYERS, HEADS, length), np.float32)} for length in lengths]
    tracemalloc.start()
    try:
        write_part(tmp_path / "part", steps, METADATA)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < copies * steps[0]["column_sums"].nbytes


def test_a_disk_that_fails_between_two_pieces_leaves_no_file_and_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "ASIDE", 0)
    steps = [{"column_sums": np.ones((LAYERS, HEADS, 20_000), np.float32)} for _ in range(4)]

    def pieces(*arguments, pieces=part_files._pieces):
        yield from list(pieces(*arguments))[:2]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(part_files, "_pieces", pieces)
    with pytest.raises(TraceError, match=r"part cannot be written \(No space left on device\); make room"):
        write_part(tmp_path / "part", steps, METADATA)
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sinkscope hash")]
