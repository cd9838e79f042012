"""Which keys of an unhidden reading are hidden, by name; for `why_hiding_hurts`."""

from collections.abc import Callable

import numpy as np
import torch
from _canvases import Chunk, Masks

from sinkscope.sinks.token_classes import CLASSES

EXCESS = 3.0  # Eq. 3 of the paper


def ranked(chunk: Chunk, rank: int) -> Masks:
    """The key of that rank in every head, 0 for the largest column."""
    found = {}
    for layer, columns in chunk.columns.items():
        place = columns.argsort(dim=-1, descending=True, stable=True)[..., rank : rank + 1]
        found[layer] = torch.zeros_like(columns, dtype=torch.bool).scatter_(-1, place, True)
    return found


def top(chunk: Chunk) -> Masks:
    return ranked(chunk, 0)


def at_top(values: Masks, chunk: Chunk) -> torch.Tensor:
    """A value at every top key, [layer, canvas, head]."""
    keys = top(chunk)
    return torch.stack([(values[layer] * keys[layer]).sum(-1) for layer in sorted(keys)])


def only(chunk: Chunk, where: torch.Tensor) -> Masks:
    """The top keys of the heads where ``where`` [layer, canvas, head] holds."""
    return {layer: keys & where[layer][..., None] for layer, keys in top(chunk).items()}


def random_keys(chunk: Chunk, seed: int, mass: bool = False) -> Masks:
    """Random keys that are neither the top one nor sinks: one a head, or until they hold as much attention as the top key."""
    found, keys = {}, top(chunk)
    for layer, columns in chunk.columns.items():
        source = torch.Generator().manual_seed(seed * 100 + layer)
        others = chunk.real[:, None] & ~keys[layer]
        drawn = torch.rand(columns.shape, generator=source) + (excess(chunk)[layer] > EXCESS).float()
        order = drawn.masked_fill(~others, 9.0).argsort(-1)
        if mass:
            held = (columns * others).gather(-1, order)
            chosen = held.cumsum(-1) - held / 2 < (columns * keys[layer]).sum(-1, keepdim=True)
        else:
            chosen = torch.arange(columns.shape[-1]).expand_as(order) < 1
        found[layer] = torch.zeros_like(others.expand_as(columns)).scatter_(-1, order, chosen) & others
    return found


def excess(chunk: Chunk) -> Masks:
    size = chunk.real.sum(-1)[:, None, None]
    return {layer: columns - (size - columns) / (size - 1) for layer, columns in chunk.columns.items()}


def value_ratio(chunk: Chunk) -> Masks:
    """|v| of every key over the median of the canvas."""
    found = {}
    for layer, norms in chunk.values.items():
        median = norms.masked_fill(~chunk.real[:, None], torch.nan).nanmedian(-1, keepdim=True).values
        found[layer] = norms / median
    return found


def contribution(chunk: Chunk) -> Masks:
    """c·|v| of every key as a share of all keys'."""
    found = {}
    for layer, norms in chunk.values.items():
        product = chunk.columns[layer].clamp(min=0) * norms
        found[layer] = product / product.sum(-1, keepdim=True)
    return found


def heads_only(chunk: Chunk, chosen: np.ndarray) -> Masks:
    """The top keys of some heads, bool [layer, head]."""
    return only(chunk, torch.from_numpy(chosen)[:, None].expand(-1, len(chunk.tokens), -1))


def who(chunk: Chunk, group: str) -> torch.Tensor:
    """Queries [canvas, query] of a group."""
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


def cells(layers: int, heads: int) -> dict[str, Choose]:
    """Everything that is hidden, by name."""

    def halves(values: Callable[[Chunk], Masks], larger: bool) -> Choose:
        def choose(chunk: Chunk) -> tuple[Masks, None, bool]:
            found = at_top(values(chunk), chunk)
            middle = found.permute(1, 0, 2).flatten(1).median(-1).values[None, :, None]
            return only(chunk, (found > middle) if larger else (found <= middle)), None, False

        return choose

    def sinks(above: bool) -> Choose:
        return lambda chunk: (only(chunk, (at_top(excess(chunk), chunk) > EXCESS) == above), None, False)

    def of_class(name: str) -> Choose:
        def choose(chunk: Chunk) -> tuple[Masks, None, bool]:
            same = (chunk.classes == CLASSES.index(name))[:, None]
            return {layer: keys & same for layer, keys in top(chunk).items()}, None, False

        return choose

    found: dict[str, Choose] = {
        "top": lambda chunk: (top(chunk), None, False),
        "top, zeroed": lambda chunk: (top(chunk), None, True),
        "random of equal mass, seed 0": lambda chunk: (random_keys(chunk, 0, True), None, False),
        "top, larger contribution": halves(contribution, True),
        "top, smaller contribution": halves(contribution, False),
        "top, sinks by Eq. 3": sinks(True),
        "top, no sinks by Eq. 3": sinks(False),
        "top, larger value": halves(value_ratio, True),
        "top, smaller value": halves(value_ratio, False),
        **{f"random of equal mass, seed {seed}": lambda chunk, seed=seed: (random_keys(chunk, seed, True), None, False) for seed in (1, 2)},
        "rank 2": lambda chunk: (ranked(chunk, 1), None, False),
        "random": lambda chunk: (random_keys(chunk, 0), None, False),
        "top, broader": halves(lambda chunk: chunk.breadth, True),
        "top, narrower": halves(lambda chunk: chunk.breadth, False),
        **{f"top, {name}": of_class(name) for name in CLASSES if name != "white space"},
    }
    for group in ("committed position", "all but the committed position", "masked but the committed position", "prompt", "answer so far"):
        found[f"top, from {group}"] = lambda chunk, group=group: (top(chunk), who(chunk, group), False)
    for layer in range(layers):
        found[f"top, layer {layer}"] = lambda chunk, layer=layer: ({layer: top(chunk)[layer]}, None, False)
    for layer in range(layers):
        for head in range(heads):
            chosen = np.zeros((layers, heads), dtype=bool)
            chosen[layer, head] = True
            found[f"top, head {layer}.{head}"] = lambda chunk, chosen=chosen: (heads_only(chunk, chosen), None, False)
    return found
