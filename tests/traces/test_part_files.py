"""A part is the file that safetensors makes of the stacked steps."""

import hashlib
import json

import numpy as np
from grown_traces import dense, make_steps
from safetensors.numpy import save

from sinkscope.traces.part_files import write_part

METADATA = {"first_step": "0", "steps": "3"}


def taken_apart(content):
    """Header and data of a safetensors file; the order of metadata is by chance there."""
    size = int.from_bytes(content[:8], "little")
    return size, json.loads(content[8 : 8 + size]), content[8 + size :]


def test_a_part_is_the_file_that_safetensors_makes(tmp_path):
    steps = make_steps(3)
    for step in steps:  # not contiguous, as a padded row is not; empty, as where nothing was computed
        step["value_norms"] = np.ascontiguousarray(step["value_norms"].T).T
        step["confidence"] = step["confidence"][:0]
    checksum = write_part(tmp_path / "part", steps, METADATA)
    content = (tmp_path / "part").read_bytes()
    assert taken_apart(content) == taken_apart(save({name: dense(steps, name) for name in steps[0]}, METADATA))
    assert checksum == hashlib.sha256(content).hexdigest()
