"""The shapes of a network's tensors, from its class and config alone: nothing of their size is allocated."""

from typing import Any

import torch

from sinkscope.errors import ModelError, first_line
from sinkscope.models.weights import kept_tensors

_WIDTHS = ("hidden_size", "intermediate_size", "vocab_size")


def parameter_shapes(kind: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its name, tied ones once."""
    return {name: tuple(parameter.shape) for name, parameter in on_meta(kind, config).named_parameters()}


def stored_shapes_of(kind: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a checkpoint of a network holds, tied ones once: parameters, and buffers that are kept."""
    return {name: tuple(tensor.shape) for name, tensor in kept_tensors(on_meta(kind, config)).items()}


def on_meta(kind: Any, config: Any) -> Any:
    """Return a network without memory.

    Raises:
        ModelError: sizes of which no network can be made, such as a tensor of more bytes than can be counted.
    """
    try:
        with torch.device("meta"):
            network = kind(config)
    except (RuntimeError, ValueError, TypeError, ArithmeticError) as error:
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in _WIDTHS)
        raise ModelError(
            f"config.json: expected fields of which a network can be made, found {sizes} ({first_line(error)}); fetch the file again"
        ) from error
    network.tie_weights()
    return network
