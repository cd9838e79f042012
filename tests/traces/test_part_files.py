"""A part goes to the disk piece by piece: the same file as safetensors makes of the stacked steps, without a second
copy.
"""

import hashlib
import json
import tracemalloc

import numpy as np
import pytest
from grown_traces import dense, make_steps
from safetensors.numpy import save

from sinkscope.traces import part_files
from sinkscope.traces.part_files import write_part

METADATA = {"first_step": "0", "steps": "3"}


def taken_apart(content):
    """Header and data of a safetensors file; the order of metadata is by chance there."""
    size = int.from_bytes(content[:8], "little")
    return size, json.loads(content[8 : 8 + size]), content[8 + size :]


@pytest.mark.parametrize(
    ("whole", "aside"), [(1 << 16, 1 << 20), (0, 1 << 20), (0, 0)], ids=["small", "by steps", "hashed aside"]
)
def test_a_part_is_the_file_that_safetensors_makes(whole, aside, tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "WHOLE", whole)
    monkeypatch.setattr(part_files, "ASIDE", aside)
    steps = make_steps(3)
    for step in steps:  # not contiguous, as a padded row is not; empty, as where nothing was computed
        step["value_norms"] = np.ascontiguousarray(step["value_norms"].T).T
        step["confidence"] = step["confidence"][:0]
    checksum = write_part(tmp_path / "part", steps, METADATA)
    content = (tmp_path / "part").read_bytes()
    stacked = {name: dense(steps, name) for name in steps[0]}
    assert taken_apart(content) == taken_apart(save(stacked, METADATA))
    assert checksum == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("lengths", "copies"), [((50_000,) * 8, 0.1), ((50_000,) * 7 + (50_001,), 2.5)], ids=["as wide", "growing"]
)
def test_writing_takes_no_copy_of_the_part(lengths, copies, tmp_path):
    """Nothing where steps are as wide; where they grew one at a time, and the one being hashed."""
    steps = [{"column_sums": np.ones((2, 3, length), np.float32)} for length in lengths]
    tracemalloc.start()
    try:
        write_part(tmp_path / "part", steps, METADATA)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < copies * steps[0]["column_sums"].nbytes
