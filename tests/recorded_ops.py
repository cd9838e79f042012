"""A CUDA graph that is none: operators are noted while a function runs, and run again on what their tensors hold then.

As with a graph, a result lies in the same memory after every replay, Python does not run again, nothing may be read
while the function is captured, and a capture computes nothing: until the first replay its results hold rubbish.
"""

import torch
from simulated_gpu import OnDevice
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from sinkscope.decoding.captured import QueueingOnly


class RecordedOps(TorchDispatchMode):
    """Operators in order, each with its arguments and its results."""

    running = None

    def __init__(self):
        super().__init__()
        self.ran, self.made, self.before, self.shapes = [], set(), [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for name, value in zip((one.name for one in function._schema.arguments), args, strict=False):
            written = next(one for one in function._schema.arguments if one.name == name).alias_info
            if written is not None and written.is_write:
                self._written(value)
        self._written(kwargs.get("out"))
        found = function(*args, **kwargs)
        self.noted(function, args, kwargs, found)
        return found

    def noted(self, function, args, kwargs, found):
        self.ran.append((function, args, kwargs, found))
        flat = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        self.shapes.append((str(function), [(tuple(one.shape), one.stride(), one.dtype) for one in flat]))
        self.made |= {id(one) for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor)}

    def _written(self, value):
        for one in tree_flatten(value)[0]:
            if isinstance(one, torch.Tensor) and id(one) not in self.made:
                self.before.append((one, one.clone()))

    def spoil(self):
        """What was written gets back what it held, and results hold rubbish."""
        for one, held in reversed(self.before):
            one.copy_(held)
        for function, args, _, found in self.ran:
            for one in fresh(function, args, found):
                one.fill_(torch.nan if one.is_floating_point() else True if one.dtype == torch.bool else 0)

    def replay(self):
        for function, args, kwargs, found in self.ran:
            again = function(*args, **kwargs)
            for one, other in zip(fresh(function, args, found), fresh(function, args, again), strict=True):
                assert one.shape == other.shape
                one.copy_(other)
                if isinstance(one, OnDevice):
                    one.made = other.made


def fresh(function, args, found):
    """The results that are neither views nor arguments."""
    if getattr(function, "is_view", False) or (isinstance(found, torch.Tensor) and any(found is one for one in args)):
        return []
    schema = getattr(function, "_schema", None)
    if schema is not None and any(one.alias_info is not None for one in schema.returns):
        return []
    given = {id(one) for one in tree_flatten(args)[0]}
    return [one for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor) and id(one) not in given]


captures = []
"""The operators of every capture, newest last."""


def recorded_ops(device, run):
    """In place of `captured.cuda_graph`."""
    with QueueingOnly(device), RecordedOps() as ops:
        RecordedOps.running = ops
        try:
            made = run()
        finally:
            RecordedOps.running = None
    ops.spoil()
    captures.append(ops)
    return made, ops.replay


def noted(kernel, flat):
    """A stand-in for a kernel, which no operator shows: the capture that runs notes it; ``flat``: its results."""

    def launch(*args):
        found = kernel(*args)
        if RecordedOps.running is not None:
            RecordedOps.running.noted(lambda *args: flat(kernel(*args)), args, {}, flat(found))
        return found

    return launch
