"""A row of a batch that meets EOS is recorded as its prompt alone; other rows are in test_seeded_batches."""

import dataclasses

from same_trace import assert_same_trace

import sinkscope
from sinkscope.traces import open_trace

PROMPTS = (
    "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:",
    "Q: Write a function f(x) that returns x plus 3.\nA:",
    "Tom",
    "Q: Anna found 3 stones in the park and 4 in the garden. How many stones did Anna find?\nA:",
)


def record(model, prompt, folder, **settings):
    with sinkscope.recording(model, out=folder):
        sinkscope.generate(model, prompt, **settings)
    return folder


def assert_same_run(folder, alone, model):
    mine, theirs = open_trace(folder), open_trace(alone)
    assert_same_trace(mine, theirs, model.network)
    for name in ("prompt", "prompt_length", "seed", "text", "sampler"):
        assert mine.manifest[name] == theirs.manifest[name], name


def test_a_row_that_met_eos_is_recorded_as_it_is_alone(varied_autoregressive, tmp_path):
    """The other rows go on; its trace does not."""
    written = sinkscope.generate(varied_autoregressive, PROMPTS[1], length=8)
    eos = int(written.tokens[written.prompt_length + 2])
    model = dataclasses.replace(varied_autoregressive, card=dataclasses.replace(varied_autoregressive.card, eos_id=eos))
    record(model, list(PROMPTS), tmp_path / "batch", length=8)
    steps = [open_trace(tmp_path / "batch" / f"{row:06d}").steps for row in range(4)]
    assert steps[1] <= 3 and max(steps) > steps[1]
    assert_same_run(
        tmp_path / "batch" / "000001", record(model, PROMPTS[1], tmp_path / "alone", length=8, seed=1), model
    )
