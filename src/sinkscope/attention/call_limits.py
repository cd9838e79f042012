"""What cannot be watched: anything but a torch module, and some calls of one."""

import torch
from torch import Tensor, nn

from sinkscope.argument_types import in_words
from sinkscope.attention.records import holds_nothing
from sinkscope.attention.stacks import StackInput
from sinkscope.errors import AttentionError, CallError


def check_network(network: object) -> None:
    """Raise an error for anything but a torch module.

    Raises:
        CallError: so it is; of a `Model` its ``network`` is one.
    """
    if not isinstance(network, nn.Module):
        advice = "; pass its network" if isinstance(getattr(network, "network", None), nn.Module) else ""
        raise CallError(f"network: expected a torch module, found {in_words(network)}{advice}")


def check_call(network: nn.Module, given: StackInput | None) -> None:
    """Raise an error for a call that cannot be watched.

    Raises:
        AttentionError: the network has no weights, the tokens hold nothing, or it runs inside a transform of torch.func or is traced.
        CallError: no rows.
    """
    name = type(network).__name__
    if torch._C._functorch.peek_interpreter_stack() is not None:  # type: ignore[attr-defined]
        raise AttentionError(
            f"expected a plain call of {name}, found one inside vmap, grad, jvp or another transform of torch.func; while "
            "something watches or hides, call it outside, and use backward() for gradients"
        )
    if given is not None and given.device.type == "meta":
        raise AttentionError(f"expected the weights of {name}, found it on the device meta, which holds none")
    if torch.jit.is_tracing():
        raise AttentionError(
            f"expected a plain call of {name}, found one that torch.jit traces; trace it before something watches or hides"
        )
    if given is not None and any(isinstance(one, Tensor) and holds_nothing(one) for one in (given.ids, given.real)):
        raise AttentionError(
            f"expected tokens for {name}, found fake tensors, which hold none; end torch.export and fake modes first"
        )
    if given is not None and given.batch == 0:
        raise CallError(f"{name}: expected at least one row of tokens, found none")


def check_plain(network: nn.Module, given: StackInput | None) -> None:
    """Raise an error for a call that cannot be made again from its tokens.

    Raises:
        AttentionError: so it is.
    """
    if given is not None and not given.plain:
        raise AttentionError(
            f"expected {type(network).__name__} to be given token ids and the mask of their padding, for an extra forward call without "
            "hiding, found embeddings, images or a mask for each query; measure locally (measured='local')"
        )
