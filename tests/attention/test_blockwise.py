"""`attend` against dense attention: output, columns, diagonal, hiding, prefix, any shape."""

from dataclasses import replace

import pytest
import torch
from dense import (
    BATCH,
    HEADS,
    KEYS,
    KV_HEADS,
    MASKS,
    QUERIES,
    VALUE_DIM,
    Inputs,
    adds_up,
    close,
    dense,
    dense_sums,
    draw,
    draw_mask,
    without,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad, scaled_dot_product_attention

from sinkscope.attention import Prefix, attend


def test_fully_masked_rows_give_nothing_as_sdpa():
    inputs = draw()
    visible = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    visible[1, :, 3] = False
    output, columns = attend(**vars(inputs), mask=visible, block=4)
    repeated = (tensor.repeat_interleave(HEADS // KV_HEADS, dim=1) for tensor in (inputs.key, inputs.value))
    close(output, scaled_dot_product_attention(inputs.query, *repeated, attn_mask=visible), inputs)
    assert torch.equal(output[1, :, 3], torch.zeros(HEADS, VALUE_DIM))
    everything = inputs.groups.sum(-1)
    everything[1] -= inputs.groups[1, :, 3]
    adds_up(columns.sums.sum(-1), everything[:, None].expand(-1, HEADS, -1), inputs)


def test_left_padding_counts_for_nothing():
    """A padded row of a batch equals the same row alone, because of its mask and its group membership."""
    inputs, padding = draw(queries=KEYS), 4
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    real[0, :padding] = False
    padded = replace(inputs, groups=real[:, None].float())
    output, columns = attend(**vars(padded), mask=real[:, None, None].expand(-1, 1, KEYS, -1), block=5)
    own = slice(padding, None)
    alone = (one[:1, :, own] for one in (inputs.query, inputs.key, inputs.value))
    expected, expected_columns = attend(*alone, groups=torch.ones(1, 1, KEYS - padding))
    close(output[:1, :, own], expected, inputs)
    close(columns.sums[:1, :, :, own], expected_columns.sums, inputs)
    assert torch.equal(columns.sums[0, :, :, :padding], torch.zeros(HEADS, 1, padding))
    adds_up(columns.sums.sum(-1), torch.tensor([KEYS - padding, KEYS])[:, None, None].expand(-1, HEADS, -1), inputs)


def in_front(inputs: Inputs, kind: str, count: int, scale: float) -> tuple[Prefix, torch.Tensor, torch.Tensor]:
    """Return constant keys, their scores [batch, head, query, count], and their values for every head."""
    heads, kv_heads, dim = inputs.query.shape[1], *inputs.key.shape[1::2]
    source = torch.Generator().manual_seed(5)
    keys = torch.randn(kv_heads, count, dim, generator=source)
    values = torch.randn(kv_heads, count, inputs.value.shape[-1], generator=source)
    logits = torch.randn(heads, count, generator=source)
    prefix = {"keys": Prefix(keys), "keys and values": Prefix(keys, values), "logits": Prefix(logits=logits)}[kind]
    keys, values = (one.double().repeat_interleave(heads // kv_heads, 0) for one in (keys, values))
    scores = logits.double()[:, None] if kind == "logits" else inputs.query.double() @ keys.mT * scale
    values = values if kind == "keys and values" else torch.zeros_like(values)
    return prefix, scores.expand(*inputs.query.shape[:3], -1), values.expand(len(inputs.query), -1, -1, -1)


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_call_equals_dense(data):
    size = st.integers(1, 9)
    kv_heads, repeat = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    heads, (batch, queries, keys, groups, dim, value_dim) = kv_heads * repeat, (data.draw(size) for _ in range(6))
    seed, scale = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.3, dim**-0.5]))
    inputs = draw(seed, batch, heads, kv_heads, queries, keys, dim, value_dim, groups)
    arguments, bias = draw_mask(data.draw(st.sampled_from(MASKS)), inputs)
    share, front = data.draw(st.sampled_from([0.0, 0.3, 1.0])), data.draw(st.sampled_from([0, 2]))
    hidden = torch.rand(batch, heads, keys, generator=torch.Generator().manual_seed(9)) < share
    bias = bias.expand(-1, heads, -1, -1)
    key, values = (one.double().repeat_interleave(repeat, 1) for one in (inputs.key, inputs.value))
    scores = inputs.query.double() @ key.mT * scale
    if front:
        kind = data.draw(st.sampled_from(["keys", "keys and values", "logits"]))
        arguments["prefix"], before, front_values = in_front(inputs, kind, front, scale)
        scores, values = torch.cat([before, scores], -1), torch.cat([front_values, values], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.attention.blockwise.CPU_SCORES", data.draw(st.sampled_from([1, 200, 1 << 18])))
        block = data.draw(st.integers(1, 10))
        output, columns = attend(**vars(inputs), **arguments, scale=scale, hidden=hidden, block=block)
    bias = pad(bias, (front, 0))
    clean = torch.softmax(scores + bias, -1).nan_to_num(0.0)
    weights = torch.softmax(scores + without(bias, pad(hidden, (front, 0))), -1).nan_to_num(0.0)
    close(output, weights @ values, inputs)
    sums = dense_sums(inputs, weights)
    close(columns.sums, sums[..., front:], inputs)
    close(columns.local, dense_sums(inputs, clean)[..., front:], inputs)
    close(columns.last_row, clean[:, :, -1, front:], inputs)
    close(columns.last_row_in_force, weights[:, :, -1, front:], inputs)
    if front:
        close(columns.prefix, sums[..., :front], inputs)
    first = 0 if arguments.get("causal") else keys - queries  # the key of query 0
    diagonal = torch.zeros(batch, heads, queries, dtype=torch.float64)
    for query in range(queries):
        if 0 <= query + first < keys:
            diagonal[..., query] = weights[..., query, front + query + first]
    close(columns.diagonal, diagonal, inputs)


def test_a_call_without_hiding_in_one_block_equals_dense():
    """The common call has a separate path through the pass."""
    inputs = draw()
    output, columns = attend(**vars(inputs))
    expected, weights = dense(inputs)
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    close(columns.last_row, weights[:, :, -1], inputs)
    close(columns.diagonal, weights.diagonal(KEYS - QUERIES, -2, -1), inputs)
    assert columns.local is None and columns.removed is None
