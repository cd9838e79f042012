"""Weights at odd places in memory, as they lie where a file is mapped and its header ends there: ``SINKSCOPE_TEST_PLACES=odd``.

Kernels choose the order of their additions by where numbers lie. What the allocator gives lies at multiples of 64 bytes; here every
parameter of every network that is called is first moved to an odd number of elements behind such a place: which one depends on where
it lay before, so that what was made, what was loaded and what was copied come to lie differently, and one file always the same.
"""

import os
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

VARIABLE = "SINKSCOPE_TEST_PLACES"


def wanted():
    """Whether this run asks for it.

    Raises:
        ValueError: the variable holds another word.
    """
    word = os.environ.get(VARIABLE, "")
    if word not in ("", "odd"):
        raise ValueError(f"{VARIABLE}: expected odd or nothing, found {word!r}")
    return word == "odd"


def is_odd(tensor):
    """Whether a tensor begins at an odd number of its elements."""
    return tensor.data_ptr() // tensor.element_size() % 2 == 1


def oddly(tensor):
    """The same numbers at an odd place; between 1 and 15 elements behind a multiple of 64 bytes."""
    ahead = 1 + 2 * (tensor.data_ptr() % 64 // 8)
    with torch.inference_mode(False), torch.no_grad():
        room = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
        first = -room.data_ptr() % 64 // room.element_size() + ahead
        return room[first : first + tensor.numel()].view(tensor.shape).copy_(tensor)


def move(module, *_):
    """Puts the parameters of a module and of those within it at odd places, where they lie on the CPU and do not already."""
    if torch.compiler.is_compiling():
        return  # the module around it has been called, and moved them
    for parameter in module.parameters():
        data = parameter.data
        if type(data) is torch.Tensor and data.device.type == "cpu" and data.numel() and not is_odd(data):
            parameter.data = oddly(data)


def as_wanted():
    """`everywhere` where this run asks for it."""
    return everywhere() if wanted() else nullcontext()


@contextmanager
def everywhere():
    """Every network that is called within has its weights at odd places."""
    handle = register_module_forward_pre_hook(move)
    try:
        yield
    finally:
        handle.remove()
