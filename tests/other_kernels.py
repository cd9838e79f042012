"""A network as other kernels would compute it, to test whether two computations agree on tokens only by luck.

Tokens are chosen by the largest logit and places by the largest confidence: where two of them are closer than the order
of additions moves them, another machine writes something else. A comparison of tokens whose one side ran in here says
that it does not hang on that.
"""

from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def other_kernels(network, seed=0):
    """Within, every product of the network is off as n roundings are: normally, by √n·ε/2 of the largest number that it
    gives.

    A sum of n terms is rarely off by that much, as its partial sums are smaller than the largest result (see
    closeness.py).
    """
    source = torch.Generator().manual_seed(seed)

    def differ(module, args, output):
        off = torch.finfo(output.dtype).eps / 2 * module.in_features**0.5 * output.abs().max()
        return output + off * torch.randn(output.shape, generator=source, dtype=output.dtype)

    handles = [module.register_forward_hook(differ) for module in network.modules() if isinstance(module, nn.Linear)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
