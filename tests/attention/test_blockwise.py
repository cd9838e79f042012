"""`attend` against dense attention: output, columns, diagonal, hiding, prefix, any shape."""

import math
from dataclasses import replace

import pytest
import torch
from dense import (
    BATCH,
    DIM,
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

from sinkscope.attention import Columns, Prefix, attend


@pytest.fixture(params=["heads together", "heads apart"])
def chunks(request, monkeypatch):
    """On long sequences heads are taken a few at a time."""
    if request.param == "heads apart":
        monkeypatch.setattr("sinkscope.attention.blockwise.CPU_SCORES", 1)


# Output and columns


def test_scale_is_used_as_given():
    inputs = draw()
    output, _ = attend(**vars(inputs), scale=0.3)
    close(output, dense(inputs, scale=0.3)[0], inputs)


def test_fully_masked_rows_give_nothing_as_sdpa():
    inputs = draw()
    visible = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    visible[1, :, 3] = False
    output, columns = attend(**vars(inputs), mask=visible, block=4)
    repeated = (tensor.repeat_interleave(HEADS // KV_HEADS, dim=1) for tensor in (inputs.key, inputs.value))
    close(output, torch.nn.functional.scaled_dot_product_attention(inputs.query, *repeated, attn_mask=visible), inputs)
    assert torch.equal(output[1, :, 3], torch.zeros(HEADS, VALUE_DIM))
    everything = inputs.groups.sum(-1)
    everything[1] -= inputs.groups[1, :, 3]
    adds_up(columns.sums.sum(-1), everything[:, None].expand(-1, HEADS, -1), inputs)


def test_left_padding_counts_for_nothing():
    """A padded row of a batch equals the same row alone, because of its mask and its group membership."""
    inputs, padding = draw(queries=KEYS), 4
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    real[0, :padding] = False
    groups = real[:, None].float()
    output, columns = attend(
        **vars(replace(inputs, groups=groups)), mask=real[:, None, None].expand(-1, 1, KEYS, -1), block=5
    )
    own = slice(padding, None)
    alone = Inputs(
        inputs.query[:1, :, own], inputs.key[:1, :, own], inputs.value[:1, :, own], torch.ones(1, 1, KEYS - padding)
    )
    expected, expected_columns = attend(**vars(alone))
    close(output[:1, :, own], expected, inputs)
    close(columns.sums[:1, :, :, own], expected_columns.sums, inputs)
    assert torch.equal(columns.sums[0, :, :, :padding], torch.zeros(HEADS, 1, padding))
    adds_up(columns.sums.sum(-1), torch.tensor([KEYS - padding, KEYS])[:, None, None].expand(-1, HEADS, -1), inputs)


# The diagonal and the last row


# Hiding


def test_a_query_keeps_its_keys_where_only_hidden_ones_are_visible():
    """Causal query 0 sees key 0 alone; queries 1 and later lose it."""
    inputs = draw()
    hidden = torch.zeros(1, 1, KEYS, dtype=torch.bool)
    hidden[..., 0] = True
    output, columns = attend(**vars(inputs), causal=True, hidden=hidden, block=4)
    close(output[:, :, 0], inputs.value.repeat_interleave(HEADS // KV_HEADS, dim=1)[:, :, 0], inputs)
    close(columns.sums[..., 0], inputs.groups[:, None, :, 0].expand(-1, HEADS, -1), inputs)


# The prefix


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_prefix_equals_dense_with_the_keys_in_front(kind, hide, chunks):
    inputs, count = draw(), 2
    arguments, bias = draw_mask(kind, inputs)
    front = draw(seed=5, batch=1, keys=count)
    prefix = Prefix(keys=front.key[0], values=front.value[0])
    hidden = torch.rand(BATCH, HEADS, KEYS, generator=torch.Generator().manual_seed(3)) < 0.4 if hide else None
    output, columns = attend(**vars(inputs), **arguments, prefix=prefix, hidden=hidden, block=4)
    longer = replace(
        inputs,
        key=torch.cat([front.key.expand(BATCH, -1, -1, -1), inputs.key], dim=2),
        value=torch.cat([front.value.expand(BATCH, -1, -1, -1), inputs.value], dim=2),
    )
    taken = bias.expand(-1, HEADS, -1, -1) if hidden is None else bias.masked_fill(hidden[:, :, None], -torch.inf)
    expected, weights = dense(longer, torch.nn.functional.pad(taken, (count, 0)))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights)[..., count:], inputs)
    close(columns.prefix, dense_sums(inputs, weights)[..., :count], inputs)
    close(columns.last_row, dense(longer, torch.nn.functional.pad(bias, (count, 0)))[1][:, :, -1, count:], inputs)


@pytest.mark.parametrize("dressed", ["keys", "logits"])
def test_prefix_without_values_only_takes_attention(dressed, chunks):
    inputs, count = draw(), 2
    keys, logits = (
        draw(seed=5, batch=1, keys=count).key[0],
        torch.randn(HEADS, count, generator=torch.Generator().manual_seed(6)),
    )
    output, columns = attend(
        **vars(inputs), prefix=Prefix(keys=keys) if dressed == "keys" else Prefix(logits=logits), block=4
    )
    repeat = HEADS // KV_HEADS
    mine = (
        inputs.query @ keys.repeat_interleave(repeat, 0).mT / math.sqrt(DIM)
        if dressed == "keys"
        else logits[:, None].expand(-1, QUERIES, -1)
    )
    scores = inputs.query @ inputs.key.repeat_interleave(repeat, 1).mT / math.sqrt(DIM)
    weights = torch.softmax(torch.cat([mine.expand(BATCH, -1, -1, -1), scores], dim=-1), dim=-1)
    close(output, weights[..., count:] @ inputs.value.repeat_interleave(repeat, 1), inputs)
    close(columns.prefix, dense_sums(inputs, weights)[..., :count], inputs)
    close(columns.sums, dense_sums(inputs, weights)[..., count:], inputs)


# Any shape


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_shape_equals_dense(data):
    size = st.integers(1, 9)
    kv_heads, repeat = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    batch, queries, keys, groups = (data.draw(size) for _ in range(4))
    inputs = draw(
        data.draw(st.integers(0, 99)),
        batch,
        kv_heads * repeat,
        kv_heads,
        queries,
        keys,
        data.draw(size),
        data.draw(size),
        groups,
    )
    arguments, bias = draw_mask(data.draw(st.sampled_from(MASKS)), inputs)
    hidden = torch.rand(batch, kv_heads * repeat, keys, generator=torch.Generator().manual_seed(9)) < data.draw(
        st.sampled_from([0.0, 0.3, 1.0])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkscope.attention.blockwise.CPU_SCORES", data.draw(st.sampled_from([1, 200, 1 << 18])))
        output, columns = attend(**vars(inputs), **arguments, hidden=hidden, block=data.draw(st.integers(1, 10)))
    bias = bias.expand(-1, kv_heads * repeat, -1, -1)
    expected, weights = dense(inputs, without(bias, hidden))
    close(output, expected, inputs)
    close(columns.sums, dense_sums(inputs, weights), inputs)
    close(columns.local, dense_sums(inputs, dense(inputs, bias)[1]), inputs)
    close(columns.last_row, dense(inputs, bias)[1][:, :, -1], inputs)
    close(columns.last_row_in_force, weights[:, :, -1], inputs)
    first = 0 if arguments.get("causal") else keys - queries  # the key of query 0
    own = [(query, query + first) for query in range(queries) if 0 <= query + first < keys]
    diagonal = torch.zeros(batch, kv_heads * repeat, queries, dtype=torch.float64)
    for query, key in own:
        diagonal[..., query] = weights[..., query, key]
    close(columns.diagonal, diagonal, inputs)
    assert isinstance(columns, Columns)
