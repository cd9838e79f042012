"""Pruning and quantisation of the linear layers of a network's blocks, with parts kept in full precision.

Embeddings, head and norms stay as they are. ``canvases`` are int64 [canvas, position], calibration text.

Pruning (shares of the weights that become 0):
    magnitude   the smallest weights of a layer
    wanda       of each row the smallest |W| · ‖X‖ (arXiv 2306.11695), block by block on what pruned blocks give
    sink-aware  the same, all blocks at once on what the whole network gives, with tokens left out by how much attention
                they get over all layers and heads: a canvas's norms are those of X · (1 − σ(5 (mass − mean − 2 std))),
                summed over canvases (arXiv 2602.17664)
Quantisation (bits; scale and zero point of each `GROUP` weights of a row, as most kernels have them):
    rtn         round to nearest
    gptq        column by column, the error spread over the columns to come by the Hessian of calibration text (arXiv
                2210.17323), block by block
    rtn with activations   the inputs of every layer too, symmetric, with one scale a canvas or one a token

Masks equal locuslab/wanda 8e8fc87 and VILA-Lab/Sink-Aware-Pruning 6ef32c9, GPTQ's weights IST-DASLab/gptq 2d65066, on
small random layers (tests/experiments/fixtures/compression.json). Rounding equals torchao 0.18.0 to the bit (asymmetric,
blocks of 1 × 64, random weights; tried once).

*Kept* is one dimension of the residual stream (the columns that read it, the rows that write it, and the activations in
it), or the activations of chosen tokens; what is kept counts for no scale.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkscope.attention import Columns, LayerCall, Watcher, subscribed

GROUP = 64
SHARPNESS, DEVIATIONS = 5.0, 2.0  # of Sink-Aware pruning, as published
DAMPING = 0.01  # of GPTQ, as published
PRUNING, QUANTISING = ("magnitude", "wanda", "sink-aware"), ("rtn", "gptq")
WRITERS = ("o_proj", "down_proj")
"""Layers whose output is added to the residual stream; all others read it, through a norm."""


def blocks_of(model: Any) -> list[nn.Module]:
    return list(model.network.model.layers)


def linears_of(block: nn.Module) -> dict[str, nn.Linear]:
    return {name: layer for name, layer in block.named_modules() if isinstance(layer, nn.Linear)}


def kept_weights(name: str, weight: Tensor, dimension: int | None) -> Bool[Tensor, "out in"]:
    """Return the weights of a layer that read or write a dimension of the residual stream."""
    kept = torch.zeros_like(weight, dtype=torch.bool)
    if dimension is not None:
        (kept if name.endswith(WRITERS) else kept.T)[dimension] = True
    return kept


def pruned_by_magnitude(weight: Float[Tensor, "out in"], share: float) -> Bool[Tensor, "out in"]:
    """Return the smallest weights of a layer, all that equal the largest of them included."""
    return weight.abs() <= weight.abs().flatten().sort().values[int(weight.numel() * share)]


def pruned_by_rows(
    weight: Float[Tensor, "out in"], norms: Float[Tensor, " in"], share: float
) -> Bool[Tensor, "out in"]:
    """Return the weights of the smallest |W| · norm in each row."""
    order = (weight.abs() * norms).argsort(dim=1, stable=True)[:, : int(weight.shape[1] * share)]
    return torch.zeros_like(weight, dtype=torch.bool).scatter(1, order, True)


def sink_weights(mass: Float[Tensor, "canvas position"]) -> Float[Tensor, "canvas position"]:
    """Return how much each token counts, about 0 for sinks; ``mass``: column sums, summed over layers and heads."""
    threshold = mass.mean(1, keepdim=True) + DEVIATIONS * mass.std(1, keepdim=True, unbiased=False)
    return 1 - torch.sigmoid(SHARPNESS * (mass - threshold))


class Mass(Watcher):
    """Column sums of a call, summed over layers and heads, float32 [canvas, position]."""

    sums: Any = 0

    def watch(self, call: LayerCall, columns: Columns) -> None:
        self.sums = self.sums + columns.sums[:, :, call.groups.index("all")].sum(1)


def grid(values: Float[Tensor, "*row weight"], bits: int) -> tuple[Tensor, Tensor]:
    """Return scale and zero point over the last axis, of a range that holds 0."""
    low, high = values.amin(-1, keepdim=True).clamp(max=0), values.amax(-1, keepdim=True).clamp(min=0)
    empty = (low == 0) & (high == 0)
    low, high = low - empty.to(low), high + empty.to(high)
    scale = (high - low) / (2**bits - 1)
    return scale, torch.round(-low / scale)


def on_grid(values: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    return scale * (torch.clamp(torch.round(values / scale) + zero, 0, 2**bits - 1) - zero)


def rounded(weight: Float[Tensor, "out in"], bits: int, kept: Bool[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """Return weights rounded to the nearest of their group's grid."""
    parts = weight.masked_fill(kept, 0).unflatten(1, (-1, GROUP))
    return torch.where(kept, weight, on_grid(parts, *grid(parts, bits), bits).flatten(1))


def gptq(
    weight: Float[Tensor, "out in"], inputs: Float[Tensor, "token in"], bits: int, kept: Bool[Tensor, "out in"]
) -> Float[Tensor, "out in"]:
    """Return weights quantised by GPTQ, in the order of the columns; a group's grid is that of its weights when their
    turn comes.
    """
    left, found, width = weight.clone(), weight.clone(), weight.shape[1]
    hessian = inputs.T @ inputs
    unread = hessian.diagonal() == 0
    hessian.diagonal()[unread] = 1
    left[:, unread] = 0
    hessian.diagonal().add_(DAMPING * hessian.diagonal().mean())
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    for start in range(0, width, GROUP):
        stop, errors = start + GROUP, []
        scale, zero = grid(left[:, start:stop].masked_fill(kept[:, start:stop], 0), bits)
        for column in range(start, stop):
            value = left[:, column : column + 1]
            found[:, column : column + 1] = torch.where(
                kept[:, column : column + 1], value, on_grid(value, scale, zero, bits)
            )
            errors.append((value - found[:, column : column + 1]) / spread[column, column])
            left[:, column:stop] -= errors[-1] * spread[column, column:stop]
        left[:, stop:] -= torch.cat(errors, 1) @ spread[start:stop, stop:]
    return found


@contextmanager
def listening(layers: dict[str, nn.Linear], heard: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call ``heard(name, input [canvas, position, width])`` for every layer that runs."""
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hook = layer.register_forward_pre_hook(lambda _, given, name=name: heard(name, given[0]))
            hooks.callback(hook.remove)
        yield


@torch.no_grad()
def block_by_block(
    model: Any,
    canvases: Int[Tensor, "canvas position"],
    change: Callable[[str, Tensor, Tensor], Tensor],
) -> None:
    """Set each layer's weight to ``change(name, weight, inputs [token, width])``, the inputs being those that the
    changed blocks below give.
    """
    given: list[Any] = []
    first = blocks_of(model)[0]
    hook = first.register_forward_pre_hook(lambda _, *call: given.extend(call), with_kwargs=True)
    model.network.model(input_ids=canvases, use_cache=False)
    hook.remove()
    hidden, named = given[0][0], given[1]
    for block in blocks_of(model):
        layers, inputs = linears_of(block), dict[str, Tensor]()
        with listening(layers, lambda name, one, inputs=inputs: inputs.update({name: one.flatten(0, 1)})):
            block(hidden, **named)
        for name, layer in layers.items():
            layer.weight.copy_(change(name, layer.weight, inputs[name]))
        found = block(hidden, **named)
        hidden = found if isinstance(found, Tensor) else found[0]


@torch.no_grad()
def attention_mass(model: Any, canvases: Int[Tensor, "canvas position"]) -> Float[Tensor, "canvas position"]:
    """Return the attention that each token gets from all queries, layers and heads."""
    with subscribed(model.network, mass := Mass()):
        model.network.model(input_ids=canvases, use_cache=False)
    return mass.sums


@torch.no_grad()
def sink_aware_norms(model: Any, canvases: Int[Tensor, "canvas position"]) -> dict[str, Float[Tensor, " in"]]:
    """Return the norms of every layer's inputs without sinks, by the layer's name in the stack of blocks."""
    weights, norms = sink_weights(attention_mass(model, canvases))[..., None], dict[str, Tensor]()
    layers = linears_of(model.network.model.layers)
    with listening(layers, lambda name, one: norms.update({name: (one * weights).norm(dim=1).sum(0)})):
        model.network.model(input_ids=canvases, use_cache=False)
    return norms


@contextmanager
def compressed(
    model: Any, method: str, level: float, canvases: Int[Tensor, "canvas position"], dimension: int | None = None
) -> Iterator[dict[str, float]]:
    """Compress the weights of a network until exit; yields the share of zeros, and the change over the weights' norm.

    Args:
        level: share that is pruned, or bits.
        dimension: of the residual stream, which is kept.
    """
    layers = linears_of(model.network.model.layers)
    before = {name: layer.weight.detach().clone() for name, layer in layers.items()}

    def change(name: str, weight: Tensor, inputs: Any) -> Tensor:
        kept = kept_weights(name, weight, dimension)
        if method == "rtn":
            return rounded(weight, int(level), kept)
        if method == "gptq":
            return gptq(weight, inputs, int(level), kept)
        norms = inputs.norm(dim=0) if method == "wanda" else norms_without_sinks.get(name)
        gone = pruned_by_magnitude(weight, level) if norms is None else pruned_by_rows(weight, norms, level)
        return weight.masked_fill(gone & ~kept, 0)

    norms_without_sinks = sink_aware_norms(model, canvases) if method == "sink-aware" else {}
    try:
        with torch.no_grad():
            if method in ("wanda", "gptq"):
                block_by_block(model, canvases, change)
            else:
                for name, layer in layers.items():
                    layer.weight.copy_(change(name, layer.weight, None))
        zeros = sum(int((layer.weight == 0).sum()) for layer in layers.values())
        squares = sum(float((layer.weight.detach() - before[name]).pow(2).sum()) for name, layer in layers.items())
        count, norm = (
            sum(ones) for ones in zip(*((one.numel(), float(one.pow(2).sum())) for one in before.values()), strict=True)
        )
        yield {"zeros": round(zeros / count, 4), "change": round((squares / norm) ** 0.5, 4)}
    finally:
        with torch.no_grad():
            for name, layer in layers.items():
                layer.weight.copy_(before[name])


@contextmanager
def rounded_activations(
    model: Any,
    bits: int,
    per: str,
    tokens: Bool[Tensor, "canvas position"] | None = None,
    dimension: int | None = None,
) -> Iterator[None]:
    """Quantise the inputs of every layer of the blocks until exit.

    Args:
        per: ``tensor``, one scale a canvas and layer, or ``token``.
        tokens, dimension: what is kept; the dimension in layers that read the residual stream.
    """

    def quantise(name: str, given: Tensor) -> Tensor:
        kept = torch.zeros_like(given, dtype=torch.bool)
        if tokens is not None:
            kept |= tokens[..., None]
        if dimension is not None and not name.endswith(WRITERS):
            kept[..., dimension] = True
        largest = given.masked_fill(kept, 0).abs().amax(dim=(1, 2) if per == "tensor" else 2, keepdim=True)
        scale = largest.clamp(min=1e-12) / (2 ** (bits - 1) - 1)
        return torch.where(kept, given, torch.round(given / scale) * scale)

    with ExitStack() as hooks:
        for name, layer in linears_of(model.network.model.layers).items():
            hook = layer.register_forward_pre_hook(lambda _, given, name=name: (quantise(name, given[0]),))
            hooks.callback(hook.remove)
        yield
