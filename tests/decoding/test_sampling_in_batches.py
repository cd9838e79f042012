"""A row of a batch equals its prompt written alone: all tokens, and everything recorded."""

import dataclasses

import pytest
import torch
from other_kernels import other_kernels
from same_trace import assert_same_trace

import sinkscope
from sinkscope.traces import open_trace

PROMPTS = (
    "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:",
    "Q: Write a function f(x) that returns x plus 3.\nA:",
    "Tom",
    "Q: Anna found 3 stones in the park and 4 in the garden. How many stones did Anna find?\nA:",
)
DIFFUSION = [
    {"length": 16, "steps": 16, "block": 16},
    {"length": 16, "steps": 6, "block": 8},
    {"length": 16, "steps": 16, "block": 8, "temperature": 0.8, "seed": 5},
    {"length": 16, "steps": 8, "block": 8, "remasking": "random", "seed": 5},
    {"length": 16, "steps": 8, "block": 16, "temperature": 0.8, "remasking": "random", "seed": 5},
    {"length": 16, "steps": 8, "block": 8, "guidance": 1.5},
    {"length": 16, "steps": 8, "block": 8, "logits_eos_inf": True, "confidence_eos_eot_inf": True},
]
AUTOREGRESSIVE = [
    {"length": 12},
    {"length": 12, "temperature": 0.9, "seed": 5},
    {"length": 12, "temperature": 1.2, "top_k": 5, "top_p": 0.8, "seed": 5},
]
CASES = [("varied_diffusion", settings) for settings in DIFFUSION] + [
    ("varied_autoregressive", settings) for settings in AUTOREGRESSIVE
]


def name_of(value):
    return (
        value.removeprefix("varied_")
        if isinstance(value, str)
        else "-".join(f"{name}{setting}" for name, setting in value.items())
    )


def assert_same_generation(one, other):
    assert torch.equal(one.tokens, other.tokens)
    assert (one.text, one.steps, one.prompt_length) == (other.text, other.steps, other.prompt_length)


@pytest.mark.parametrize(("kind", "settings"), CASES, ids=name_of)
def test_every_row_writes_what_it_writes_alone(request, kind, settings):
    model = request.getfixturevalue(kind)
    batch = sinkscope.generate(model, list(PROMPTS), **settings)
    assert len({generation.prompt_length for generation in batch}) == 4
    for row, prompt in enumerate(PROMPTS):
        seeded = {**settings, "seed": settings.get("seed", 0) + row}
        with other_kernels(model.network):
            alone = sinkscope.generate(model, prompt, **seeded)
        assert_same_generation(batch[row], alone)


@pytest.mark.parametrize("kind", ["varied_diffusion", "varied_autoregressive"], ids=name_of)
def test_rows_do_not_depend_on_their_neighbours_or_their_number(request, kind):
    model = request.getfixturevalue(kind)
    settings = {"length": 8, "temperature": 1.0, "seed": 2}
    whole = sinkscope.generate(model, list(PROMPTS), **settings)
    for row, generation in enumerate(sinkscope.generate(model, list(PROMPTS[:2]), **settings)):
        assert_same_generation(generation, whole[row])
    twice = sinkscope.generate(model, [PROMPTS[0]] * 2, **settings)
    assert_same_generation(twice[0], whole[0])
    assert not torch.equal(twice[0].tokens, twice[1].tokens)


def record(model, prompt, folder, **settings):
    with sinkscope.recording(model, out=folder):
        sinkscope.generate(model, prompt, **settings)
    return folder


def assert_same_run(folder, alone, model):
    mine, theirs = open_trace(folder), open_trace(alone)
    assert_same_trace(mine, theirs, model.network)
    for name in ("prompt", "prompt_length", "seed", "text", "sampler"):
        assert mine.manifest[name] == theirs.manifest[name], name


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("diffusion", {"length": 12, "steps": 6, "block": 6}),
        ("diffusion", {"length": 12, "steps": 6, "block": 6, "guidance": 1.5}),
        ("diffusion", {"length": 12, "steps": 6, "block": 6, "temperature": 0.7, "seed": 5}),
        ("autoregressive", {"length": 6}),
        ("autoregressive", {"length": 6, "temperature": 0.7, "seed": 5}),
    ],
    ids=name_of,
)
def test_every_row_is_recorded_as_it_is_alone(request, tmp_path, kind, settings):
    model = request.getfixturevalue(kind)
    record(model, list(PROMPTS), tmp_path / "batch", **settings)
    for row, prompt in enumerate(PROMPTS):
        alone = record(model, prompt, tmp_path / f"alone{row}", **{**settings, "seed": settings.get("seed", 0) + row})
        assert_same_run(tmp_path / "batch" / f"{row:06d}", alone, model)


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
