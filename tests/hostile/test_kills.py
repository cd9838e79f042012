"""kill −9 at random moments: what is finished can be read, and the same command goes on to equal results."""

import json
import random
import shutil
import subprocess
import sys
import time

import pytest
from hostile import specimens

from sinkscope.traces import open_trace, read_statistics

pytestmark = pytest.mark.whole_trial
SHORT = ["--length", "32", "--steps", "32", "--block", "32"]


def command(*words):
    return [sys.executable, "-m", "sinkscope", *map(str, words)]


def killed_at(words, seconds):
    """Start a command and kill it; return whether it had ended before."""
    process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == 0


def finished(words):
    began = time.monotonic()
    done = subprocess.run(command(*words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in (specimens.PROMPT, specimens.OTHER) * 4))
    return path


def test_traces(tmp_path):
    words = ["trace", "lab-diffusion", "--prompt", specimens.PROMPT, "--length", "192", "--steps", "192", "--block", "192", "--out"]
    took, source = finished([*words, tmp_path / "whole"]), random.Random(1)
    whole = open_trace(tmp_path / "whole")
    for number in range(25):
        out = tmp_path / f"{number}"
        killed_at([*words, out], took * source.uniform(0.3, 1.05))
        if not (out / "manifest.json").exists():
            continue
        trace = open_trace(out)
        assert trace.complete == (trace.steps == whole.steps and json.loads((out / "manifest.json").read_text())["complete"])
        if trace.steps:
            assert (trace.column_sums[:] == whole.column_sums[: trace.steps])[
                ~(whole.column_sums[: trace.steps] != whole.column_sums[: trace.steps])
            ].all()
        shutil.rmtree(out)


@pytest.mark.parametrize("kind", ["statistics", "evaluate", "train"])
def test_runs_that_go_on(tmp_path, prompts, kind):
    words = {
        "statistics": ["trace", "lab-diffusion", "--prompts", prompts, "--keep", "statistics", *SHORT, "--out"],
        "evaluate": ["evaluate", "lab-diffusion", "--limit", "8", "--batch", "2", "--shots", "0", *SHORT, "--out"],
        "train": ["train", "lab-sink-none", "--updates", "12", "--out"],
    }[kind]
    took, source = finished([*words, tmp_path / "whole"]), random.Random(kind)
    kills = 0
    while kills < 25:
        out = tmp_path / f"out-{kills}"
        while kills < 25 and not killed_at([*words, out], took * source.uniform(0.2, 1.02)):
            kills += 1
        finished([*words, out])
        assert _result(kind, out) == _result(kind, tmp_path / "whole")
        kills += 1
        shutil.rmtree(out)


def _result(kind, folder):
    if kind == "statistics":
        manifest, arrays, texts = read_statistics(folder)
        return manifest["complete"], {name: array.tobytes() for name, array in arrays.items()}, texts
    if kind == "evaluate":
        (row,) = json.loads((folder / "results.json").read_text())["results"]
        return {name: value for name, value in row.items() if name != "seconds"}
    return (folder / "model.safetensors").read_bytes()
