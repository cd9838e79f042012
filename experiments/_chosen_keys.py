"""Choices of the keys that `why_hiding_hurts.py` hides in an unhidden reading."""

from collections.abc import Callable

import numpy as np
import torch
from _canvases import Chunk, Masks

from sinkscope.sinks.token_classes import CLASSES

EXCESS = 3.0  # Eq. 3 of the paper


def ranked(chunk: Chunk, rank: int) -> Masks:
    """Return the key of that rank in every head, 0 for the largest column."""
    found = {}
    for layer, columns in chunk.columns.items():
        place = columns.argsort(dim=-1, descending=True, stable=True)[..., rank : rank + 1]
        found[layer] = torch.zeros_like(columns, dtype=torch.bool).scatter_(-1, place, True)
    return found


def top(chunk: Chunk) -> Masks:
    return ranked(chunk, 0)


def at_top(values: Masks, chunk: Chunk) -> torch.Tensor:
    """Return the value at every top key, [layer, canvas, head]."""
    keys = top(chunk)
    return torch.stack([(values[layer] * keys[layer]).sum(-1) for layer in sorted(keys)])


def only(chunk: Chunk, where: torch.Tensor) -> Masks:
    """Return the top keys of the heads in which ``where`` [layer, canvas, head] holds."""
    return {layer: keys & where[layer][..., None] for layer, keys in top(chunk).items()}


def random_keys(chunk: Chunk, seed: int, like: Masks | None = None) -> Masks:
    """Draw random keys that are neither the top one nor sinks: one a head, or until they hold as much as the top key.

    ``like`` says what is held: ``chunk.columns``, the attention of all queries, or ``chunk.own``, that of the position being written.
    """
    found, keys = {}, top(chunk)
    for layer, columns in chunk.columns.items():
        source = torch.Generator().manual_seed(seed * 100 + layer)
        others = chunk.real[:, None] & ~keys[layer]
        drawn = torch.rand(columns.shape, generator=source) + (excess(chunk)[layer] > EXCESS).float()
        order = drawn.masked_fill(~others, 9.0).argsort(-1)
        if like is not None:
            held = (like[layer] * others).gather(-1, order)
            chosen = held.cumsum(-1) - held / 2 < (like[layer] * keys[layer]).sum(-1, keepdim=True)
        else:
            chosen = torch.arange(columns.shape[-1]).expand_as(order) < 1
        found[layer] = torch.zeros_like(others.expand_as(columns)).scatter_(-1, order, chosen) & others
    return found


def excess(chunk: Chunk) -> Masks:
    size = chunk.real.sum(-1)[:, None, None]
    return {layer: columns - (size - columns) / (size - 1) for layer, columns in chunk.columns.items()}


def value_ratio(chunk: Chunk) -> Masks:
    """Return |v| of every key over the median of the canvas."""
    found = {}
    for layer, norms in chunk.values.items():
        median = norms.masked_fill(~chunk.real[:, None], torch.nan).nanmedian(-1, keepdim=True).values
        found[layer] = norms / median
    return found


def contribution(chunk: Chunk) -> Masks:
    """Return c·|v| of every key as a share of the sum over keys."""
    found = {}
    for layer, norms in chunk.values.items():
        product = chunk.columns[layer].clamp(min=0) * norms
        found[layer] = product / product.sum(-1, keepdim=True)
    return found


def heads_only(chunk: Chunk, chosen: np.ndarray) -> Masks:
    """Return the top keys of the heads that are chosen, bool [layer, head]."""
    return only(chunk, torch.from_numpy(chosen)[:, None].expand(-1, len(chunk.tokens), -1))


def who(chunk: Chunk, group: str) -> torch.Tensor:
    """Return the queries of a group, bool [canvas, query]."""
    place = torch.arange(chunk.tokens.shape[1])[None]
    here = place == chunk.position[:, None]
    masked = chunk.classes == CLASSES.index("mask")
    answer = place >= chunk.prompt_end[:, None]
    return (
        chunk.real
        & {
            "committed position": here,
            "all but the committed position": ~here,
            "masked": masked,
            "masked but the committed position": masked & ~here,
            "prompt": ~answer,
            "answer so far": answer & ~masked,
        }[group]
    )


Choose = Callable[[Chunk], tuple[Masks, torch.Tensor | None, bool]]
