"""Checkpoint files of every kind that torch.save makes and `convert` cannot use."""

import warnings

import pytest
import torch
from hostile import trial
from safetensors.torch import load_file, save_file

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 5\n"


def quantised():
    with warnings.catch_warnings(action="ignore"):  # torch will drop them one day
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


FILES = {
    "a name that is a number": (
        lambda tensors: {1: torch.zeros(2), **tensors},
        "expected tensors by name, found one under 1",
    ),
    "a sparse tensor": (
        lambda tensors: {**tensors, "x": torch.zeros(2, 2).to_sparse()},
        "x: expected a dense tensor with its values, found a",
    ),
    "a tensor without values": (lambda tensors: {**tensors, "x": torch.empty(2, device="meta")}, "found a meta one"),
    "a quantised tensor": (
        lambda tensors: {**tensors, "x": quantised()},
        "found a quantised one",
    ),
    "a head of three axes": (
        lambda tensors: {**tensors, "lm_head.weight": torch.zeros(2, 2, 2)},
        "expected shape (any, any), found (2, 2, 2)",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_tensors_that_are_none(place, kind):
    change, says = FILES[kind]
    torch.save(change(load_file(place / "lit/lit.safetensors")), place / "a.pth")
    outcome = trial.run(
        "convert", f"{place}/a.pth", "--tokenizer", f"{place}/lit", "--heads", "2", "--out", f"{place}/out"
    )
    assert trial.faults(outcome, out=place / "out") == [] and says in outcome.err, outcome


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_a_pointer_of_git_lfs(place, name):
    (place / name).write_bytes(POINTER)
    outcome = trial.run(
        "convert", f"{place}/{name}", "--tokenizer", f"{place}/lit", "--heads", "2", "--out", f"{place}/out"
    )
    assert trial.faults(outcome, out=place / "out") == [] and "it is a pointer of Git LFS" in outcome.err, outcome


def test_a_head_of_three_axes_in_safetensors(place):
    tensors = load_file(place / "lit/lit.safetensors")
    save_file({**tensors, "lm_head.weight": torch.zeros(2, 2, 2)}, place / "a.safetensors")
    outcome = trial.run(
        "convert", f"{place}/a.safetensors", "--tokenizer", f"{place}/lit", "--heads", "2", "--out", f"{place}/out"
    )
    assert (
        trial.faults(outcome, out=place / "out") == [] and "expected shape (any, any), found (2, 2, 2)" in outcome.err
    ), outcome
