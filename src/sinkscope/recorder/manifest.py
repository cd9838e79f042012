"""The manifest of a trace: plain values that describe the run that made it."""

import json
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sinkscope.attention import GenerationStart
from sinkscope.models import Model
from sinkscope.models.fingerprints import were_changed
from sinkscope.recorder.step_tensors import PartStep


def describe_run(
    network: nn.Module, model: Model | None, start: GenerationStart, prompt: int, step: PartStep, layers: int
) -> dict[str, Any]:
    """Return the values that are known of a prompt, by its number in the generation, before its first step.

    Args:
        network: the module that is watched.
        model: with its card; None for another module.
        step: the first one.
        layers: how many were measured.
    """
    sampler = plain_values(dict(start.sampler))
    if isinstance(sampler.get("seed"), int):
        sampler["seed"] += prompt
    parameter = next(network.parameters(), torch.empty(0))
    dtype = str(parameter.dtype).removeprefix("torch.")  # the card's is that of loading
    card: dict[str, Any] = {"name": type(network).__name__}
    if model is not None:
        card = {**model.card.as_dict(), "dtype": dtype}
        if were_changed(network, model.card.weight_hash):
            parameters = sum(one.numel() for one in network.parameters())
            card |= {"weight_hash": None, "parameters": parameters, "layers": layers}
    return {
        "model": card,
        "command": command_line(),
        "causal": step.causal,
        "sampler": sampler,
        "seed": sampler.get("seed"),
        "prompt": start.prompts[prompt],
        "prompt_length": (step.context.prompt_lengths or start.prompt_lengths)[prompt],
        "mask_id": start.mask_id,
        "device": str(parameter.device),
        "dtype": dtype,
        "versions": {
            "sinkscope": version("sinkscope"),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
    }


def plain_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name as a manifest holds them, NumPy's numbers as Python's."""
    return json.loads(json.dumps(found, allow_nan=False, default=lambda number: number.item()))


def command_line() -> str | None:
    """Return the running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
