"""Small random models that every test shares, and shape checks in the core while tests run."""

import dataclasses
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from jaxtyping import install_import_hook

SINKS = ("definition", "tracking", "drift")
STATISTICS = ("groups", "intervals", "move_triggers", "movement", "norms", "prompt", "prompt_canvas", "step")
CHECKED = (*(f"sinks.{name}" for name in SINKS), *(f"statistics.{name}" for name in STATISTICS))
SOURCE = Path(__file__).parents[1] / "src" / "sinkscope"
assert all((SOURCE / f"{name.replace('.', '/')}.py").exists() for name in CHECKED), (
    "a module that is checked has another name now"
)
install_import_hook(
    [f"sinkscope.{name}" for name in ("attention.dispatch", "attention.records", *CHECKED)], "beartype.beartype"
)

import torch
from random_models import TINY, save_random_model

import sinkscope
from sinkscope import cli

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
# Without a GPU Triton's kernels are interpreted. It decides when it is first imported, which is in the tests that use
# it.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")


@pytest.fixture(scope="session")
def diffusion_folder(tmp_path_factory):
    return save_random_model(tmp_path_factory.mktemp("models") / "diffusion", "lab-diffusion")


@pytest.fixture(scope="session")
def autoregressive_folder(tmp_path_factory):
    grouped = dataclasses.replace(TINY, heads=6, kv_heads=2, hidden_size=48)
    return save_random_model(tmp_path_factory.mktemp("models") / "autoregressive", "lab-autoregressive", grouped)


@pytest.fixture(scope="session")
def diffusion(diffusion_folder):
    """Random bidirectional model: 3 layers, 5 heads, fp32."""
    return sinkscope.load(str(diffusion_folder))


@pytest.fixture(scope="session")
def autoregressive(autoregressive_folder):
    """Random causal model with grouped queries: 3 layers, 6 heads, 2 kv heads, fp32."""
    return sinkscope.load(str(autoregressive_folder))


QUESTION = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SHORT = "Q: Write a function f(x) that returns x plus 3.\nA:"


@pytest.fixture
def question():
    return QUESTION


@pytest.fixture
def short():
    return SHORT


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command in this process: (exit status, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sinkscope", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run
