"""Dense attention in float64, which holds the whole map: the second implementation of every number of `attend`."""

import math
from dataclasses import dataclass

import torch
from closeness import assert_close
from torch import Tensor

from sinkscope.attention import AttentionInputs, Hidden

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, VALUE_DIM, GROUPS = 2, 6, 3, 11, 13, 5, 7, 4


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    groups: Tensor


def attention_inputs(
    inputs: Inputs, *, scale: float | None = None, hidden: Tensor | None = None, **more
) -> AttentionInputs:
    """Return the inputs that `attend` makes of its arguments."""
    scale = inputs.query.shape[-1] ** -0.5 if scale is None else scale
    return AttentionInputs(
        **vars(inputs), scale=scale, hidden=() if hidden is None else [Hidden(hidden[:, :, None])], **more
    )


def draw(
    seed=0,
    batch=BATCH,
    heads=HEADS,
    kv_heads=KV_HEADS,
    queries=QUERIES,
    keys=KEYS,
    dim=DIM,
    value_dim=VALUE_DIM,
    groups=GROUPS,
):
    source = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(batch, heads, queries, dim, generator=source)
    key = 2 * torch.randn(batch, kv_heads, keys, dim, generator=source)
    value = torch.randn(batch, kv_heads, keys, value_dim, generator=source)
    return Inputs(query, key, value, torch.randint(0, 2, (batch, groups, queries), generator=source).float())


def dense(inputs: Inputs, bias: Tensor | float = 0.0, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Return output and weights, 0 for a query that sees nothing."""
    repeat = inputs.query.shape[1] // inputs.key.shape[1]
    key, value = (tensor.double().repeat_interleave(repeat, dim=1) for tensor in (inputs.key, inputs.value))
    scores = inputs.query.double() @ key.mT * (inputs.query.shape[-1] ** -0.5 if scale is None else scale) + bias
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    return weights @ value, weights


def dense_sums(inputs: Inputs, weights: Tensor) -> Tensor:
    return torch.einsum("bgq,bhqk->bhgk", inputs.groups.to(weights), weights)


def without(bias: Tensor, hidden: Tensor) -> Tensor:
    """Return the bias without the hidden keys; a query that would see nothing keeps them."""
    taken = bias.masked_fill(hidden[:, :, None], -torch.inf)
    return torch.where(taken.isneginf().all(-1, keepdim=True), bias, taken)


def own_places(weights: Tensor, shift: int) -> Tensor:
    """Return what each query i gives key i + shift, 0 where there is none: [batch, head, query]."""
    found = torch.zeros(weights.shape[:3], dtype=weights.dtype)
    for query in range(weights.shape[2]):
        if 0 <= query + shift < weights.shape[3]:
            found[:, :, query] = weights[:, :, query, query + shift]
    return found


def as_bias(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)


def triangle(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril()


def draw_mask(kind: str, inputs: Inputs, seed: int = 1) -> tuple[dict, Tensor]:
    """Return arguments for `attend`, and the same as an additive float64 mask [batch, 1, query, key]."""
    source = torch.Generator().manual_seed(seed)
    batch, queries, keys = len(inputs.query), inputs.query.shape[2], inputs.key.shape[2]
    visible = torch.rand(batch, 1, queries, keys, generator=source) < 0.7
    slope = torch.randn(batch, 1, queries, keys, generator=source)
    if kind == "causal":
        return {"causal": True}, as_bias(triangle(queries, keys)[None, None].expand_as(visible))
    if kind == "boolean":
        return {"mask": visible}, as_bias(visible)
    if kind == "additive":
        return {"mask": slope.masked_fill(~visible, -torch.inf)}, slope.double() + as_bias(visible)
    if kind == "finite minimum":
        return {"mask": slope.masked_fill(~visible, torch.finfo(torch.float32).min)}, slope.double() + as_bias(visible)
    return {}, as_bias(torch.ones_like(visible))


MASKS = ("none", "causal", "boolean", "additive", "finite minimum")


def close(found: Tensor | None, expected: Tensor, inputs: Inputs, dtype: torch.dtype | None = None) -> None:
    """As close as the order of additions allows: weights are sums over keys, columns over queries, scores over the size
    of a head.

    In half precision, that of ``found`` unless ``dtype`` says another, inputs are exact and sums are fp32: weights and
    output are rounded once each.
    """
    assert found is not None
    dtype = dtype or found.dtype
    if dtype in (torch.bfloat16, torch.float16):
        assert_close(found, expected, terms=2, dtype=dtype)
        return
    dim, longest = (
        inputs.query.shape[-1],
        [float(one.double().norm(dim=-1).max()) for one in (inputs.query, inputs.key)],
    )
    terms = inputs.query.shape[2] + inputs.key.shape[2]
    assert_close(found, expected, terms=terms, scores=(longest[0] * longest[1] / math.sqrt(dim), dim))


def adds_up(totals: Tensor, expected: Tensor, inputs: Inputs) -> None:
    """Columns, summed over keys: whatever the error of a score, it is in all shares of its query, which add up to 1."""
    assert_close(totals, expected, terms=inputs.query.shape[2] + 2 * inputs.key.shape[2], dtype=totals.dtype)
