"""A process that is killed while it records leaves every whole part behind."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from processes import ALIKE, environment

import sinkscope

pytestmark = pytest.mark.slow

LENGTH, REACHED = 32, 21
PROMPT = "Q: Write a function f(x) that returns x plus 3.\nA:"

SCRIPT = (
    ALIKE
    + f"""
import sys, time, sinkscope

model = sinkscope.load(sys.argv[1])

def on_step(step):
    if step.number == {REACHED}:
        print("reached", flush=True)
        time.sleep(600)  # until the kill

with sinkscope.recording(model, out=sys.argv[2]):
    sinkscope.generate(model, {PROMPT!r}, length={LENGTH}, block={LENGTH}, on_step=on_step)
"""
)


def test_after_kill_9_the_trace_opens_says_incomplete_and_holds_every_whole_part(diffusion, diffusion_folder, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(diffusion_folder), str(killed)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "reached\n"
    finally:
        process.kill()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
    with sinkscope.recording(diffusion, out=whole):
        sinkscope.generate(diffusion, PROMPT, length=LENGTH, block=LENGTH)
    trace, reference = sinkscope.open_trace(killed), sinkscope.open_trace(whole)
    assert not trace.complete
    listed = json.loads((killed / "manifest.json").read_text(encoding="utf-8"))["parts"]
    assert len(trace.parts) - 1 <= len(listed) <= len(trace.parts)  # the kill may come between a part and its entry
    assert REACHED + 1 - 15 <= trace.steps <= REACHED + 1  # what is not in a part yet is less than a part
    for name in reference.tensors:
        np.testing.assert_array_equal(getattr(trace, name)[:], getattr(reference, name)[: trace.steps], err_msg=name)
    assert trace.manifest["prompt"] == PROMPT
    assert "text" not in trace.manifest
    assert len(sinkscope.find_sinks(trace, excess=0.5)) > 0
