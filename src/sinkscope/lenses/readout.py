"""The readout of one canvas: the residual stream behind each layer through the network's own final norm and head.

This is the logit lens (nostalgebraist, 2020). Behind the last layer it is the model's own prediction.
"""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkscope.attention.stacks import find_stacks
from sinkscope.errors import ModelError
from sinkscope.models import Model, block_length

AT_ONCE = 1 << 25
"""Logits in one product, 128 MB."""


def blocks_of(model: Model) -> list[nn.Module]:
    """Return the layers of a model with one stack of them."""
    return list(dict.fromkeys(find_stacks(model.network)[0].blocks.values()))


def as_in_blocks(model: Model, block: int | None) -> AbstractContextManager[Any]:
    """Return a context in which block diffusion sees blocks of that many tokens, None: those of its checkpoint."""
    own = block_length(model.network)
    return nullcontext() if own is None else model.network.model.blocks_of(block or own)


@torch.no_grad()
def streams_of(
    model: Model, blocks: list[nn.Module], tokens: Int[np.ndarray, " position"]
) -> Float[Tensor, "layer position width"]:
    """Return the residual stream behind each layer; ModelError where more than the last one's is predicted from."""
    ids, found = torch.from_numpy(tokens.astype(np.int64)).to(model.device)[None], list[Any]()
    with ExitStack() as hooks:
        for block in blocks:
            handle = block.register_forward_hook(lambda block, given, output: found.append(output))
            hooks.callback(handle.remove)
        own = model.logits(ids, 1, use_cache=False).float()
    if len(found) == len(blocks) and all(isinstance(one, Tensor) and one.shape[:2] == ids.shape for one in found):
        near = 1e-3 if model.card.dtype == "float32" else 0.3
        if torch.allclose(read(model, blocks, found[-1][:, -1:]), own, rtol=near, atol=near):
            return torch.cat(found)
    raise ModelError(f"{model.card.name}: its layers do not pass one residual stream from one to the next")


def read(
    model: Model, blocks: list[nn.Module], streams: Float[Tensor, "layer row width"]
) -> Float[Tensor, "layer row vocabulary"]:
    """Return the logits of streams: the network as it is, but each of its layers returns them."""
    ids = torch.zeros(streams.shape[:2], dtype=torch.long, device=model.device)
    with ExitStack() as patches:
        for block in blocks:
            patches.enter_context(mock.patch.object(block, "forward", lambda *given, **named: streams))
        return model.logits(ids, streams.shape[1], use_cache=False).float()


@dataclass(frozen=True, eq=False)
class Readout:
    """What each layer predicts at chosen rows of a canvas.

    Attributes:
        entropy: in nats.
        kl: KL(final ‖ lens), in nats, 0 behind the last layer.
        top: the token with the largest logit.
        rank: of each of some tokens a row, 1 for the top one; NaN where the token is −1.
    """

    entropy: Float[np.ndarray, "layer row"]
    kl: Float[np.ndarray, "layer row"]
    top: Int[np.ndarray, "layer row"]
    rank: Float[np.ndarray, "layer row token"]


@torch.no_grad()
def readout(
    model: Model,
    blocks: list[nn.Module],
    streams: Float[Tensor, "layer row width"],
    tokens: Int[np.ndarray, "row token"],
    tuned: Any = None,
) -> Readout:
    """Return the readout of streams; ``tuned`` corrects each layer's before the norm."""
    asked = torch.from_numpy(tokens.astype(np.int64)).to(model.device)
    final = torch.log_softmax(read(model, blocks, streams[-1:])[0], -1)
    sure, parts = final.exp(), list[tuple[Tensor, ...]]()
    certainty = torch.linalg.vecdot(sure, final)
    for part in (streams if tuned is None else tuned(streams)).split(max(1, AT_ONCE // final.numel())):
        for logits in read(model, blocks, part):  # a layer fits into the processor's cache
            rank = [1 + (logits > one[:, None]).count_nonzero(-1) for one in logits.gather(-1, asked.clamp(min=0)).mT]
            largest, top = logits.max(-1)
            shares = torch.softmax(logits, -1)
            total = largest - shares.gather(-1, top[:, None])[:, 0].log()  # the logarithm of Σ exp
            kl = certainty + total - torch.linalg.vecdot(sure, logits)
            entropy = total - torch.linalg.vecdot(shares, logits)
            ranks = torch.stack(rank, -1).double().masked_fill(asked < 0, torch.nan)
            parts.append((entropy, kl.clamp(min=0), top, ranks))
    return Readout(*(torch.stack(one).cpu().numpy() for one in zip(*parts, strict=True)))
