"""A row of a batch equals its prompt written alone, for every family and sampler, recorded or not."""

import dataclasses

import numpy as np
import pytest
import torch
from closeness import assert_close, probabilities_of
from other_kernels import other_kernels
from seeded_models import seeded_model
from sixths import a_sixth_unmarked

import sinkscope
from sinkscope.traces import open_trace

PROMPTS = ([3, 17, 42, 8, 25], [11, 50], [2, 33, 33, 7, 19, 44, 6, 1, 20], [12])
BLOCKS = [
    {"length": 12, "steps": 12, "block": 6},
    {"length": 12, "steps": 4, "block": 12, "guidance": 1.5},
    {"length": 12, "steps": 6, "block": 6, "temperature": 0.8, "seed": 5},
    {"length": 12, "steps": 6, "block": 4, "temperature": 0.6, "guidance": 0.5, "remasking": "random", "seed": 5},
]
DREAM = [
    {"length": 12, "steps": 8, "algorithm": "entropy"},
    {"length": 12, "steps": 8, "algorithm": "origin", "temperature": 0.7, "top_p": 0.9, "seed": 5},
    {"length": 12, "steps": 12, "algorithm": "maskgit_plus", "top_k": 5, "alg_temp": 0.3, "seed": 5},
    {"length": 12, "steps": 5, "algorithm": "topk_margin", "temperature": 1.0, "alg_temp": 0.3, "seed": 5},
    {"length": 12, "steps": 6, "algorithm": "entropy", "alg_temp": 0.002, "seed": 5},
]
PARALLEL = [
    {"length": 12, "block": 4, "threshold": 0.5, "remasking": "random", "seed": 5},
    {"length": 12, "block": 4, "threshold": 0.3, "temperature": 1.0, "seed": 5},
    {"length": 12, "block": 4, "factor": 1.0, "temperature": 1.0, "seed": 5},
    {"length": 12, "block": 4, "threshold": 0.3, "guidance": 1.5},
    {"length": 12, "block": 4, "factor": 1.0, "guidance": 0.5, "temperature": 0.6, "seed": 5},
]
LLADA = [
    {"length": 12, "steps": 6, "block": 12, "logits_eos_inf": True, "confidence_eos_eot_inf": True, "temperature": 0.5}
]
AUTOREGRESSIVE = [{"length": 9}, {"length": 9, "temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 5}]
CASES = {
    "llada": BLOCKS + LLADA + PARALLEL,
    "mmada": BLOCKS + PARALLEL,
    "dream": DREAM,
    "autoregressive": AUTOREGRESSIVE,
}
EVERY = [(sampler, settings) for sampler, cases in CASES.items() for settings in cases]


def name_of(value):
    return value if isinstance(value, str) else "-".join(f"{name}{setting}" for name, setting in value.items())


def together(model, **settings):
    return sinkscope.generate(model, [list(prompt) for prompt in PROMPTS], **settings)


def alone(model, row, settings):
    """On other kernels, as another shape may run on."""
    with other_kernels(model.network):
        return sinkscope.generate(model, PROMPTS[row], **{**settings, "seed": settings.get("seed", 0) + row})


@pytest.mark.parametrize(("sampler", "settings"), EVERY, ids=name_of)
def test_every_row_writes_what_it_writes_alone(sampler, settings):
    model = seeded_model(sampler)
    for row, found in enumerate(together(model, **settings)):
        single = alone(model, row, settings)
        assert torch.equal(found.tokens, single.tokens)
        assert (found.text, found.steps, found.prompt_length) == (single.text, single.steps, single.prompt_length)


MEASURED = {"column_sums", "self_attention", "value_norms", "key_norms", "hidden_norms", "written", "confidence"}


def assert_same_trace(mine, theirs, network):
    assert mine.tensors == theirs.tensors and set(mine.tensors) >= MEASURED
    shares = probabilities_of(network, torch.from_numpy(theirs.tokens[-1:].astype(np.int64)))
    for name in mine.tensors:
        found, expected = getattr(mine, name)[:], getattr(theirs, name)[:]
        if expected.dtype.kind == "f":
            assert_close(found, expected, **shares, what=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(("sampler", "settings"), a_sixth_unmarked(EVERY), ids=name_of)
def test_every_row_is_recorded_as_it_is_alone_and_recording_changes_no_token(tmp_path, sampler, settings):
    model = seeded_model(sampler)
    plain = together(model, **settings)
    with sinkscope.recording(model, out=tmp_path / "batch"):
        recorded = together(model, **settings)
    for row in range(len(PROMPTS)):
        assert torch.equal(recorded[row].tokens, plain[row].tokens)
        with sinkscope.recording(model, out=tmp_path / f"alone{row}"):
            alone(model, row, settings)
        assert_same_trace(
            open_trace(tmp_path / "batch" / f"{row:06d}"), open_trace(tmp_path / f"alone{row}"), model.network
        )


def test_the_padding_token_is_never_read():
    for sampler in CASES:
        model = seeded_model(sampler)
        other = dataclasses.replace(model, card=dataclasses.replace(model.card, eos_id=5))
        settings = {"length": 4, "guidance": 1.0} if sampler == "mmada" else {"length": 4}
        for first, second in zip(*(together(each, **settings) for each in (model, other)), strict=True):
            width = min(len(first.tokens), len(second.tokens))
            assert torch.equal(first.tokens[:width], second.tokens[:width])
