"""kill −9 at 100 random moments: what is finished can be read, and the same command goes on to equal results.

The processes are forked from this one, which has imported everything, so that the moments fall into the work.
"""

import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from hostile import specimens, trial

from sinkscope.errors import SinkscopeError, TraceError
from sinkscope.evaluation.results_folder import find_items
from sinkscope.traces import open_trace, read_statistics
from sinkscope.traces.statistics_folder import STATISTICS

pytestmark = pytest.mark.slow
KILLS = 25
SHORT = ["--length", "32", "--steps", "32", "--block", "32"]
LONG = ["--length", "192", "--steps", "192", "--block", "192"]
WORDS = {
    "trace": ["trace", "lab-diffusion", "--prompt", specimens.PROMPT, *LONG, "--overwrite"],
    "statistics": ["trace", "lab-diffusion", "--prompts", "{prompts}", "--keep", "statistics", *SHORT],
    "evaluate": ["evaluate", "lab-diffusion", "--limit", "8", "--batch", "2", "--shots", "0", *SHORT],
    "train": ["train", "lab-sink-none", "--updates", "12"],
}
WRITES = {"trace": "manifest.json", "statistics": "manifest.json", "evaluate": "run.json", "train": "recipe.json"}


@pytest.fixture
def small_recipes():
    """The recipes as they are: a run of twelve updates takes seconds, so that a kill hits it."""


def started(words):
    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_WRONLY)
        trial.command(words, nothing, nothing)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(words, seconds):
    """Start a command and kill it; return whether it was at work until then."""
    child = started(words)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def finish(words):
    began = time.monotonic()
    assert ended(started(words)) == 0, words
    return time.monotonic() - began


@pytest.mark.parametrize("kind", WORDS)
def test_a_kill_loses_nothing_that_is_finished(whole, tmp_path, kind):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{specimens.PROMPT} {number}"}) + "\n" for number in range(8)))
    words = [*(word.format(prompts=prompts) for word in WORDS[kind]), "--out"]
    finish([*words, str(tmp_path / "whole")])
    took, source, kills, begun, ends = finish([*words, str(tmp_path / "again")]), random.Random(kind), 0, 0, 0
    expected = result(kind, tmp_path / "whole")
    assert equal(result(kind, tmp_path / "again"), expected)
    while kills < KILLS:
        out = tmp_path / f"out-{kills}"
        for _ in range(source.randint(1, 4)):
            if kills == KILLS or not killed_after([*words, str(out)], took * source.uniform(0.02, 0.98)):
                break
            kills += 1
            begun += (out / WRITES[kind]).exists()
            check_readable(kind, out, expected)
        finish([*words, str(out)])
        ends += 1
        assert equal(result(kind, out), expected), f"{kind}: other results after {kills} kills"
        shutil.rmtree(out)
    trial.log(
        f"{kind}: {kills} kills, {begun} of them after the first file, {ends} runs gone on with to equal results; a run takes {took:.1f} s"
    )
    assert begun >= KILLS // 2


def check_readable(kind, out, expected):
    """Read what a killed run left; anything but one of our errors for what is not finished fails."""
    if not (out / WRITES[kind]).exists():
        return
    if kind == "trace":
        trace = open_trace(out)
        trace.verify()
        if not trace.steps:  # killed before the first part was written
            assert not trace.complete
            return
        for name, array in expected.items():
            found = getattr(trace, name)[:]
            assert np.array_equal(
                found, array[: trace.steps, ..., : found.shape[-1]], equal_nan=found.dtype.kind == "f"
            ), name
        assert not trace.complete or trace.steps == len(expected["tokens"])
    elif kind == "statistics":
        if not (out / STATISTICS).exists():  # killed before the first prompt was finished
            with pytest.raises(TraceError, match="holds no complete prompt yet; run the command that began it again"):
                read_statistics(out)
            return
        assert 1 <= read_statistics(out)[0]["prompts"] <= 8
    elif kind == "evaluate":
        for item in find_items(out):
            assert json.loads(item.read_text())["checksum"]
    elif (out / "model.safetensors").exists():
        import sinkscope

        try:
            sinkscope.load(out)
        except SinkscopeError as error:
            assert trial.FOREIGN.search(str(error)) is None


def result(kind, folder):
    """Return what a run is for, as arrays or bytes by name."""
    if kind == "trace":
        trace = open_trace(folder)
        assert trace.complete
        return {
            name: getattr(trace, name)[:] for name in ("tokens", "written", "confidence", "column_sums", "value_norms")
        }
    if kind == "statistics":
        manifest, arrays, texts = read_statistics(folder)
        assert manifest["complete"]
        return {**arrays, "texts": np.array(json.dumps(texts))}
    if kind == "evaluate":
        (row,) = json.loads((folder / "results.json").read_text())["results"]
        items = [json.loads(item.read_text()) for item in find_items(folder)]
        for one in [row, *items]:
            for name in ("seconds", "checksum"):
                one.pop(name, None)
        return {"row": np.array(json.dumps(row)), "items": np.array(json.dumps(items))}
    return {"weights": np.array((folder / "model.safetensors").read_bytes())}


def equal(found, expected):
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name], equal_nan=expected[name].dtype.kind == "f") for name in expected
    )
